package matrix

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/warmpath/warmpath/internal/lab/drive"
)

// Entry is the content of one run's file.
type Entry struct {
	// Arguments is a hash of all that the run depends on, the program included.
	Arguments string `json:"arguments"`
	Cell      Cell   `json:"cell"`
	Policy    string `json:"policy"`
	Clients   int    `json:"clients"`
	Seed      uint64 `json:"seed"`
	// Rate is requests per second, or how much faster than recorded the trace arrives.
	Rate float64 `json:"rate"`
	// Seconds is how long the run took.
	Seconds float64       `json:"seconds"`
	Result  *drive.Result `json:"result"`
}

// Program names this program by its contents.
func Program() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(path)
	return digest(b), err
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// hashed is a hash of the arguments, which are numbers, strings, and lists and structs of these.
func hashed(args ...any) string {
	b, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	return digest(b)
}

// file is where a run is kept.
func file(dir, cell, policy string, clients int, seed uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%s_%s_%d_%d.json", cell, policy, clients, seed))
}

// load reads a run; nil if there is none that can be read.
func load(path string) *Entry {
	e := new(Entry)
	b, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(b, e) != nil || e.Result == nil {
		return nil
	}
	return e
}
