package fleet

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A list that is accepted names valid replicas, none twice, and has the same contents when it is written again.
func FuzzParseList(f *testing.F) {
	for _, s := range []string{
		"a:1", "a:1,b:2", "x=a:1, y=[::1]:2", "x=y=a:1", "[fe80::1%e]:1", "a:1,A:1", "=a:1", "a:1,", "a:01,b:+1", "\x00:1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		fleet, err := ParseList(list)
		if err != nil {
			require.Nil(t, fleet)
			require.NotEmpty(t, err.Error())
			return
		}
		entries, ids, addresses := make([]string, len(fleet)), map[string]bool{}, map[string]bool{}
		for i, r := range fleet {
			require.NoError(t, checkAddress(r.Address))
			require.NoError(t, checkID(r.ID))
			require.False(t, r.ID == "" || ids[r.ID] || addresses[addressKey(r.Address)])
			ids[r.ID], addresses[addressKey(r.Address)] = true, true
			entries[i] = r.ID + "=" + r.Address
		}
		if strings.Contains(strings.Join(entries, ""), ",") {
			return // an id may have one only where the list has not
		}
		again, err := ParseList(strings.Join(entries, ","))
		require.NoError(t, err)
		require.Equal(t, fleet, again)
	})
}
