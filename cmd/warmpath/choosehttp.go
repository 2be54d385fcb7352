package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/warmpath/warmpath/internal/httpendpoint"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// printCurl prints a curl command for the same request to a server's HTTP endpoint. A token stays in its file.
func printCurl(w io.Writer, address string, dial *dialFlags, ask *warmpathv1.ChooseReplicaRequest) error {
	if dial.name != "" {
		return usagef("--tls-name: curl takes the name from the address: give that with --curl")
	}
	k := ask.GetKey()
	scheme := "http://"
	if dial.secure() {
		scheme = "https://"
	}
	words := []string{"curl", "-sS", scheme + address + httpendpoint.RoutePath}
	for _, f := range []struct{ name, file string }{{"--cacert", dial.ca}, {"--cert", dial.cert}, {"--key", dial.key}} {
		if f.file != "" {
			words = append(words, f.name, f.file)
		}
	}
	for _, h := range []struct{ name, value string }{
		{httpendpoint.HeaderDeployment, ask.GetDeployment()},
		{httpendpoint.HeaderExclude, strings.Join(ask.GetExcluded(), ",")},
		{httpendpoint.HeaderSession, k.GetSession()}, {"X-Request-Id", k.GetRequestId()},
	} {
		if h.value != "" {
			words = append(words, "-H", h.name+": "+h.value)
		}
	}
	body, err := json.Marshal(struct {
		Model     string `json:"model,omitempty"`
		Adapter   string `json:"lora_name,omitempty"`
		CacheSalt string `json:"cache_salt,omitempty"`
		Prompt    string `json:"prompt,omitempty"`
	}{k.GetModel(), k.GetAdapter(), k.GetCacheSalt(), k.GetText()})
	if err != nil {
		return err
	}
	words = append(words, "-d", string(body))
	for i := range words {
		words[i] = quoted(words[i])
	}
	if dial.tokenFile != "" {
		words = append(words, `-H "Authorization: Bearer $(head -n 1 `+quoted(dial.tokenFile)+`)"`)
	}
	_, err = fmt.Fprintln(w, strings.Join(words, " "))
	return err
}

// quoted is a word as a shell takes it.
func quoted(word string) string {
	if !strings.ContainsAny(word, " '\"\\{}$`*?&;<>|()#\n\t") {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
