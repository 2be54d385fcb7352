package apiserver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Do sends one request as the administrator and decodes the answer into out, unless that is nil. contentType is that
// of the body, "" = JSON. An answer that is no success is an error with its text.
func (s *Server) Do(ctx context.Context, method, path, contentType string, body []byte, out any) error {
	request, err := http.NewRequestWithContext(ctx, method, s.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+s.Token)
	request.Header.Set("Accept", "application/json")
	request.Header.Set("Content-Type", cmp.Or(contentType, "application/json"))
	answer, err := s.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}

// Namespace creates a namespace.
func (s *Server) Namespace(ctx context.Context, name string) error {
	return s.create(ctx, "/api/v1/namespaces", object{"metadata": object{"name": name}}, nil)
}

// ServiceAccount creates a service account and returns a token of it.
func (s *Server) ServiceAccount(ctx context.Context, namespace, name string) (token string, err error) {
	path := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
	if err := s.create(ctx, path, object{"metadata": object{"name": name}}, nil); err != nil {
		return "", err
	}
	return s.NewToken(ctx, namespace, name)
}

// NewToken returns another token of a service account. It is valid for an hour.
func (s *Server) NewToken(ctx context.Context, namespace, serviceAccount string) (token string, err error) {
	path := "/api/v1/namespaces/" + namespace + "/serviceaccounts/" + serviceAccount + "/token"
	var answer struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	err = s.create(ctx, path, object{"spec": object{"expirationSeconds": 3600}}, &answer)
	return answer.Status.Token, err
}

// object is a JSON object.
type object map[string]any

// create posts an object to a collection.
func (s *Server) create(ctx context.Context, path string, o object, out any) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return s.Do(ctx, http.MethodPost, path, "", body, out)
}

// Kubeconfig is the text of a kubeconfig file (JSON is YAML) for a token in a file, which is read anew now and then.
// The context has a namespace unless that is "".
func (s *Server) Kubeconfig(tokenFile, namespace string) ([]byte, error) {
	named := func(name, kind string, o object) []object { return []object{{"name": name, kind: o}} }
	return json.Marshal(object{
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": named("test", "cluster", object{"server": s.URL, "certificate-authority-data": s.CA}),
		"users":    named("test", "user", object{"tokenFile": tokenFile}),
		"contexts": named("test", "context", object{"cluster": "test", "user": "test", "namespace": namespace}),
	})
}
