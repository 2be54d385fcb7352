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
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/warmpath/warmpath/internal/loadprobe"
	"github.com/warmpath/warmpath/internal/router/load"
)

// An engine is how one kind of engine names on its page what is wanted.
type engine struct {
	running, waiting string
	// cache is a metric with labels for the tokens of a block and the number of blocks; "" = they are metrics.
	cache, blockTokens, blocks string
}

var engines = []engine{
	{"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:cache_config_info", "block_size", "num_gpu_blocks"},
	{"vllm_num_requests_running", "vllm_num_requests_waiting", "vllm_cache_config_info", "block_size", "num_gpu_blocks"},
	{"ray_vllm_num_requests_running", "ray_vllm_num_requests_waiting", "ray_vllm_cache_config_info", "block_size",
		"num_gpu_blocks"}, // of Ray's agent
	{"sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:cache_config_info", "page_size", "num_pages"},
	{"trtllm_num_requests_running", "trtllm_num_requests_waiting", "", "trtllm_kv_cache_tokens_per_block",
		"trtllm_kv_cache_max_blocks"},
}

// wanted are the names of all engines; those of labels are the names of no metrics.
var wanted = func() map[string]bool {
	all := make(map[string]bool)
	for _, e := range engines {
		all[e.running], all[e.waiting], all[e.cache], all[e.blockTokens], all[e.blocks] = true, true, true, true, true
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
func read(ctx context.Context, client *http.Client, url string) (load.Report, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return load.Report{}, err
	}
	r.Header.Set("Accept", "text/plain;version=0.0.4")
	a, err := client.Do(r)
	if err != nil {
		return load.Report{}, err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return load.Report{}, fmt.Errorf("%s answers %s", url, a.Status)
	}
	return parsePage(a.Body)
}

var errTooLong = fmt.Errorf("the page is longer than %d MiB, or one of its lines than %d KiB", loadprobe.MaxAnswer>>20,
	maxLine>>10)

// maxLine bounds a line of a page.
const maxLine = bufio.MaxScanTokenSize

// parsePage finds what is wanted on a page.
func parsePage(r io.Reader) (load.Report, error) {
	lines, err := pick(r)
	if err != nil {
		return load.Report{}, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(lines))
	if err != nil {
		return load.Report{}, fmt.Errorf("%w: %w", loadprobe.ErrMalformed, err)
	}
	for _, e := range engines {
		if l, ok := e.load(families); ok {
			return l, nil
		}
	}
	return load.Report{}, loadprobe.ErrNothing
}

// pick keeps the lines with a name that is wanted.
func pick(r io.Reader) ([]byte, error) {
	limited := &io.LimitedReader{R: r, N: loadprobe.MaxAnswer + 1}
	s := bufio.NewScanner(limited)
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

// load returns what one kind of engine reports; false if the page is not one's of that kind. Of several data-parallel
// ranks the smallest cache counts.
func (e *engine) load(families map[string]*dto.MetricFamily) (l load.Report, ok bool) {
	running, ok := sum(families[e.running])
	waiting, waits := sum(families[e.waiting])
	l.QueuedTokens = -1
	if !ok && !waits {
		return load.Report{}, false
	}
	loadprobe.AddRank(&l, running+waiting, 0)
	for _, m := range families[e.cache].GetMetric() {
		tokens, _ := strconv.Atoi(label(m, e.blockTokens))
		blocks, _ := strconv.Atoi(label(m, e.blocks))
		loadprobe.AddRank(&l, 0, product(tokens, blocks))
	}
	if e.cache == "" {
		tokens, _ := sum(families[e.blockTokens])
		blocks, _ := sum(families[e.blocks])
		loadprobe.AddRank(&l, 0, product(tokens, blocks))
	}
	return l, true
}

// sum adds up the values of the data-parallel ranks. Ranks of other kinds share their requests: of each data-parallel
// rank the first of them counts. A value without priority is the total of the values with a priority beside it.
func sum(f *dto.MetricFamily) (total int, ok bool) {
	groups := make(map[string]map[string]*dto.Metric) // by identity and priority
	for _, m := range f.GetMetric() {
		if v := m.GetUntyped().GetValue(); math.IsNaN(v) || v < 0 {
			continue
		}
		id, priority := identity(m), label(m, "priority")
		if groups[id] == nil {
			groups[id] = make(map[string]*dto.Metric)
		}
		if before := groups[id][priority]; before == nil || order(m) < order(before) {
			groups[id][priority] = m
		}
	}
	for _, parts := range groups {
		if whole := parts[""]; whole != nil {
			parts = map[string]*dto.Metric{"": whole}
		}
		for _, m := range parts {
			total, ok = min(total+int(min(m.GetUntyped().GetValue(), 1<<40)), 1<<40), true
		}
	}
	return total, ok
}

// sharing are the labels of ranks that share their requests.
var sharing = []string{"pp_rank", "tp_rank", "moe_ep_rank"}

// identity is a metric's labels, without those of ranks that share requests, and without the priority.
func identity(m *dto.Metric) string {
	var all []string
	for _, l := range m.GetLabel() {
		if name := l.GetName(); name != "priority" && !slices.Contains(sharing, name) {
			all = append(all, strconv.Quote(name)+strconv.Quote(l.GetValue()))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

// order is the order of ranks that share requests.
func order(m *dto.Metric) (n int) {
	for _, name := range sharing {
		rank, _ := strconv.Atoi(label(m, name))
		n = n<<16 + min(max(rank, 0), 1<<16-1)
	}
	return n
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// product is 0 where one of the two is not known, or no cache is so large.
func product(a, b int) int {
	const most = 1 << 31
	if a <= 0 || b <= 0 || a > most/b {
		return 0
	}
	return a * b
}
