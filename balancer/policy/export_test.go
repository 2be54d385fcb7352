package policy

import (
	"fmt"

	"sigs.k8s.io/yaml"
)

// ParseYAML reads a config as the files of the look-aside server and of explain contain it.
func ParseYAML(data []byte) (*Config, error) {
	raw, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return ParseConfig(raw)
}
