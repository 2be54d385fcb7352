package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/server/httpdoor"
)

// printCurl prints a curl command that asks the same at a server's HTTP door.
func printCurl(w io.Writer, address string, ask *warmpathv1.ChooseReplicaRequest) error {
	k := ask.GetKey()
	words := []string{"curl", "-sS", "http://" + address + httpdoor.RoutePath}
	for _, h := range []struct{ name, value string }{
		{httpdoor.HeaderDeployment, ask.GetDeployment()}, {httpdoor.HeaderExclude, strings.Join(ask.GetExcluded(), ",")},
		{httpdoor.DefaultConfig().SessionHeader, k.GetSession()}, {"X-Request-Id", k.GetRequestId()},
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
	for i, word := range append(words, "-d", string(body)) {
		if strings.ContainsAny(word, " '\"\\{}$`*?&;<>|()#\n\t") {
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		if i > 0 {
			word = " " + word
		}
		if _, err := io.WriteString(w, word); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(w)
	return err
}
