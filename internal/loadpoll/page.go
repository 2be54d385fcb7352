package loadpoll

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// An engine is how one kind of engine names on its page what is wanted.
type engine struct {
	running, waiting string
	// A metric whose labels tell the size of a block and how many there are.
	cache, blockSize, blocks string
	// Or two metrics whose values do.
	tokensPerBlock, maxBlocks string
}

var engines = []engine{
	{running: "vllm:num_requests_running", waiting: "vllm:num_requests_waiting", cache: "vllm:cache_config_info",
		blockSize: "block_size", blocks: "num_gpu_blocks"},
	{running: "sglang:num_running_reqs", waiting: "sglang:num_queue_reqs", cache: "sglang:cache_config_info",
		blockSize: "page_size", blocks: "num_pages"},
	{running: "trtllm_num_requests_running", waiting: "trtllm_num_requests_waiting",
		tokensPerBlock: "trtllm_kv_cache_tokens_per_block", maxBlocks: "trtllm_kv_cache_max_blocks"},
}

// wanted are the names of all engines.
var wanted = func() map[string]bool {
	all := make(map[string]bool)
	for _, e := range engines {
		for _, name := range []string{e.running, e.waiting, e.cache, e.tokensPerBlock, e.maxBlocks} {
			if name != "" {
				all[name] = true
			}
		}
	}
	return all
}()

// newHTTPClient returns a client that neither follows redirects nor asks a proxy.
func newHTTPClient() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy, t.MaxIdleConnsPerHost, t.MaxResponseHeaderBytes = nil, 1, 64<<10
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// read reads a page.
func read(ctx context.Context, client *http.Client, url string) (Load, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Load{}, err
	}
	r.Header.Set("Accept", "text/plain;version=0.0.4")
	a, err := client.Do(r)
	if err != nil {
		return Load{}, err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return Load{}, fmt.Errorf("%s answers %s", url, a.Status)
	}
	return parsePage(a.Body)
}

var errTooLong = fmt.Errorf("the page is longer than %d MiB, or one of its lines than %d KiB", maxAnswer>>20,
	maxLine>>10)

// maxLine bounds a line of a page.
const maxLine = 64 << 10

// parsePage finds what is wanted on a page.
func parsePage(r io.Reader) (Load, error) {
	lines, err := pick(r)
	if err != nil {
		return Load{}, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(lines))
	if err != nil {
		return Load{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	for _, e := range engines {
		if l, ok := e.load(families); ok {
			return l, nil
		}
	}
	return Load{}, errNothing
}

// pick keeps the lines with a name that is wanted.
func pick(r io.Reader) ([]byte, error) {
	limited := &io.LimitedReader{R: r, N: maxAnswer + 1}
	s := bufio.NewScanner(limited)
	s.Buffer(make([]byte, 0, 4096), maxLine)
	var kept []byte
	for s.Scan() {
		line := s.Bytes()
		end := bytes.IndexAny(line, "{ \t")
		if end > 0 && wanted[string(line[:end])] {
			kept = append(append(kept, line...), '\n')
		}
	}
	switch err := s.Err(); {
	case errors.Is(err, bufio.ErrTooLong) || limited.N == 0:
		return nil, errTooLong
	case err != nil:
		return nil, err
	}
	return kept, nil
}

// load returns what one kind of engine reports; false if the page is not one's of that kind.
func (e *engine) load(families map[string]*dto.MetricFamily) (Load, bool) {
	running, ok := sum(families[e.running])
	waiting, waits := sum(families[e.waiting])
	if !ok && !waits {
		return Load{}, false
	}
	l := Load{Ongoing: min(running+waiting, maxRequests)}
	if e.cache != "" {
		l.KVTokens = e.smallestCache(families[e.cache])
		return l, true
	}
	perBlock, _ := sum(families[e.tokensPerBlock])
	blocks, _ := sum(families[e.maxBlocks])
	l.KVTokens = product(perBlock, blocks)
	return l, true
}

// sum adds up the ranks' values. Of several tensor- or pipeline-parallel ranks, which share their requests, the first
// counts.
func sum(f *dto.MetricFamily) (total int, ok bool) {
	for _, m := range f.GetMetric() {
		if shard(m) {
			continue
		}
		v := m.GetUntyped().GetValue()
		if math.IsNaN(v) || v < 0 {
			continue
		}
		total, ok = min(total+int(min(v, 1<<40)), 1<<40), true
	}
	return total, ok
}

// shard reports whether this is a further part of an engine whose first part has the same.
func shard(m *dto.Metric) bool {
	for _, name := range []string{"tp_rank", "pp_rank"} {
		if v := label(m, name); v != "" && v != "0" {
			return true
		}
	}
	return false
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// smallestCache reads the sizes of the caches from labels.
func (e *engine) smallestCache(f *dto.MetricFamily) int {
	least := 0
	for _, m := range f.GetMetric() {
		size, _ := strconv.Atoi(label(m, e.blockSize))
		blocks, _ := strconv.Atoi(label(m, e.blocks))
		if n := product(size, blocks); n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// product is 0 where one of the two is not known, or no cache is so large.
func product(a, b int) int {
	const most = 1 << 31
	if a <= 0 || b <= 0 || a > most/b {
		return 0
	}
	return a * b
}
