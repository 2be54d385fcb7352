package matrix

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/lab/workload"
)

func TestBuiltin(t *testing.T) {
	cells := Builtin()
	require.NoError(t, Check(cells))
	count := map[string]int{}
	for _, c := range cells {
		count[c.Factor]++
	}
	require.Equal(t, map[string]int{
		"base": 1, "burst": 3, "workload": len(workload.Names()) - 3, "load": 3, "replicas": 2, "clients": 2, "share": 3, "kv": 1, "preset": 2, "corner": 40, "pressure": 35,
	}, count)
}

func TestRead(t *testing.T) {
	cells := tiny(t)
	require.Equal(t, 0.7, cells[0].Load, "what is not set is as in the base")
	require.Equal(t, `{"name":"three","workload":"trace","copies":2,"load":0.7,"replicas":1,"clients":2,"presets":["h100-14b"],"kv_tokens":1024000,"share":"none","minutes":0.4,"warm_up_minutes":0.05}`, cells[2].String())
	for text, want := range map[string]string{
		``:                                      "none",
		`{}`:                                    "none",
		`{"cells":[{}]}`:                        "name",
		`{"cells":[{"name":"A"}]}`:              "name",
		`{"cells":[{"name":"../a"}]}`:           "name",
		`{"cells":[{"name":"a","x":1}]}`:        `cells[0]: `,
		`{"cells":[{"name":"a"},{"name":"a"}]}`: "twice",
		`{"cells":[]} {}`:                       "not JSON",
		`{"cells":[{"name":"a","workload":"talk"}]}`:               "workload",
		`{"cells":[{"name":"a","load":0}]}`:                        "load",
		`{"cells":[{"name":"a","rate":-1}]}`:                       "rate",
		`{"cells":[{"name":"a","replicas":0}]}`:                    "replicas",
		`{"cells":[{"name":"a","clients":5000}]}`:                  "clients",
		`{"cells":[{"name":"a","presets":[]}]}`:                    "presets",
		`{"cells":[{"name":"a","presets":["h200"]}]}`:              `preset "h200"`,
		`{"cells":[{"name":"a","share":"all"}]}`:                   "share",
		`{"cells":[{"name":"a","interval_ms":-1}]}`:                "interval_ms",
		`{"cells":[{"name":"a","minutes":-1}]}`:                    "minutes",
		`{"cells":[{"name":"a","minutes":3,"warm_up_minutes":3}]}`: "warm_up_minutes",
		`{"cells":[{"name":"a","unshared":0.5}]}`:                  "unshared",
		`{"cells":[{"name":"a","workload":"chat","copies":2}]}`:    "copies",
		`{"cells":[{"name":"a","workload":"chat","unshared":1}]}`:  "unshared",
	} {
		_, err := Read(strings.NewReader(text))
		require.ErrorContains(t, err, want, text)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(`{"cells":[{"name":"a","load":0.9,"presets":["mocker"]}]}`)
	f.Add(`{"cells":[{"name":"a"},{"name":"b","workload":"chat","unshared":0.5}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		cells, err := Read(strings.NewReader(text))
		if err != nil {
			return
		}
		b, err := json.Marshal(map[string]any{"cells": cells})
		require.NoError(t, err)
		again, err := Read(strings.NewReader(string(b)))
		require.NoError(t, err)
		require.Equal(t, cells, again)
	})
}
