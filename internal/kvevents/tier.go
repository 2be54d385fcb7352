package kvevents

import (
	"strings"

	"github.com/warmpath/warmpath/balancer/policy"
)

// TierOf returns the tier of a medium as engines name it. Storage that replicas share is none.
func TierOf(medium string) (policy.Tier, bool) {
	switch strings.ToUpper(medium) {
	case "", "GPU", "DEVICE":
		return policy.TierGPU, true
	case "CPU", "CPU_PINNED", "CPU_TIER1", "HOST", "HOST_PINNED":
		return policy.TierHost, true
	case "DISK", "SSD", "NVME", "STORAGE", "CPU_TIER2":
		return policy.TierDisk, true
	}
	return 0, false
}

// fullAttention reports whether blocks of such a group stand for a whole prefix. A group without a kind does if it
// is the first.
func fullAttention(spec string, group int) bool {
	switch spec {
	case "full_attention", "mla_attention", "sink_full_attention", "sink_full":
		return true
	}
	return spec == "" && group == 0
}
