package kubernetes

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/internal/apiserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(apiserver.Main{M: m}) }
