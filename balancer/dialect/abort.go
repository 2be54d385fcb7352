package dialect

import (
	"fmt"
	"strings"
)

// Aborts reports whether requests of the method are to be ended by a call of their own when
// the caller goes: whether [Method.Abort] can return something.
func (m *Method) Aborts() bool { return m != nil && m.dialect.Abort != "" }

// Abort returns the method that ends the request which has the id, "" where there is none. Its
// request is a message whose field 1 is the id.
func (m *Method) Abort() string {
	if m == nil {
		return ""
	}
	return m.dialect.Abort
}

// RequestID reads the request id out of a request message, "" where it has none.
func (m *Method) RequestID(msg any) (id string) {
	if m == nil || msg == nil {
		return ""
	}
	defer harmless()
	v := values{need: slotRequestID.bit() & m.request.slots}
	if v.need != 0 {
		m.request.read(msg, &v)
		fill(&id, &m.request, &v, slotRequestID)
	}
	return id
}

// checkAbort validates the method that ends requests.
func (d Dialect) checkAbort() error {
	switch {
	case d.Abort == "":
		return nil
	case !isMethod(d.Abort):
		return fmt.Errorf("abort: %q is not of the form /package.Service/Method", d.Abort)
	case d.RequestID == "":
		return fmt.Errorf("abort: request_id is not set, so no request could be named")
	}
	return nil
}

// isMethod reports whether s is a full method name.
func isMethod(s string) bool {
	service, method, ok := strings.Cut(strings.TrimPrefix(s, "/"), "/")
	return strings.HasPrefix(s, "/") && ok && service != "" && method != "" && !strings.Contains(method, "/")
}
