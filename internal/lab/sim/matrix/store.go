package matrix

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
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
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// hashed is a hash of the arguments, which are numbers, strings, and lists and structs of these.
func hashed(args ...any) string {
	b, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// file is where a run is kept.
func file(dir, cell, policy string, clients int, seed uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%s_%s_%d_%d.json", cell, policy, clients, seed))
}

// load reads a run; nil if there is none that can be read.
func load(path string) *Entry {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	e := new(Entry)
	if json.Unmarshal(b, e) != nil || e.Result == nil {
		return nil
	}
	return e
}
