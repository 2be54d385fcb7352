package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/balancer"
	"github.com/warmpath/warmpath/internal/fleetfile"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/tokenize"
	"github.com/warmpath/warmpath/lab/sim/matrix"
	"github.com/warmpath/warmpath/server"
)

func TestConfigsInDocs(t *testing.T) {
	for _, f := range append(fences(t, "json"), fences(t, "yaml")...) {
		t.Run(f.String(), func(t *testing.T) {
			var top map[string]json.RawMessage
			_ = json.Unmarshal([]byte(f.text), &top)
			var err error
			switch text := []byte(f.text); {
			case strings.HasPrefix(f.text, "replicas:"):
				_, err = fleetfile.Parse(text)
			case strings.Contains(f.text, "deployments:"):
				_, err = server.ParseConfig(text)
			case f.lang == "yaml":
				var c *policy.Config
				if text, err = yaml.YAMLToJSONStrict(text); err == nil {
					c, err = policy.ParseConfig(text)
				}
				if err == nil {
					_, err = requestkey.ParseDialects(c.Dialects)
				}
			case strings.HasPrefix(f.text, "["):
				_, err = requestkey.ParseDialects(text)
			case top["cells"] != nil:
				_, err = matrix.Read(strings.NewReader(f.text))
			case top["loadBalancingConfig"] != nil:
				err = parseServiceConfig(top["loadBalancingConfig"])
			default:
				var c *policy.Config
				if c, err = policy.ParseConfig(text); err == nil {
					_, err = requestkey.ParseDialects(c.Dialects)
					err = errors.Join(err, tokenize.Check(c.Tokenizer))
				}
			}
			require.NoError(t, err)
		})
	}
}

func parseServiceConfig(raw json.RawMessage) error {
	var choices []map[string]json.RawMessage
	if err := json.Unmarshal(raw, &choices); err != nil {
		return err
	}
	if len(choices) == 0 || choices[0][balancer.Name] == nil {
		return fmt.Errorf("the first choice is not %s", balancer.Name)
	}
	_, err := policy.ParseConfig(choices[0][balancer.Name])
	return err
}
