package grpcserver

import (
	"fmt"
	"net/http"
)

// ServeMetrics answers with the few lines of vLLM's Prometheus page that have the load and the size of the cache.
func (s *Server) ServeMetrics(w http.ResponseWriter, _ *http.Request) {
	st, c := s.Stats(), s.driver.Config()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	labels := fmt.Sprintf("engine=%q,model_name=%q", "0", s.model())
	for _, m := range []struct {
		name, what string
		value      float64
	}{
		{"vllm:num_requests_running", "Number of requests in model execution batches.", float64(st.Load.Running)},
		{"vllm:num_requests_waiting", "Number of requests waiting to be processed.", float64(st.Load.Waiting)},
		{"vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
			ratio(st.Load.UsedTokens, st.Load.TotalTokens)},
	} {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s gauge\n%s{%s} %g\n", m.name, m.what, m.name, m.name, labels, m.value)
	}
	fmt.Fprintf(w,
		"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"%d\",num_gpu_blocks=\"%d\",%s} 1\n",
		c.BlockSize, st.Load.TotalTokens/max(c.BlockSize, 1), labels)
}
