package dialect

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/warmpath/warmpath/balancer/routing"
)

type enum int32

// kinds is a generated struct with every kind of field that is read by offset.
type kinds struct {
	Text    string            `protobuf:"bytes,1,opt,name=text"`
	Bytes   []byte            `protobuf:"bytes,2,opt,name=bytes"`
	I32     int32             `protobuf:"varint,3,opt,name=i32"`
	U32     *uint32           `protobuf:"varint,4,opt,name=u32"`
	I64     *int64            `protobuf:"varint,5,opt,name=i64"`
	U64     uint64            `protobuf:"varint,6,opt,name=u64"`
	Wide    []int64           `protobuf:"varint,7,rep,name=wide"`
	Texts   []string          `protobuf:"bytes,8,rep,name=texts"`
	Blobs   [][]byte          `protobuf:"bytes,9,rep,name=blobs"`
	Info    map[string]string `protobuf:"bytes,10,rep,name=info"`
	Turns   []*kindsTurn      `protobuf:"bytes,11,rep,name=turns"`
	Batch   []*kindsTurn      `protobuf:"bytes,12,rep,name=batch"`
	Enum    enum              `protobuf:"varint,13,opt,name=enum"`
	Float   float64           `protobuf:"fixed64,14,opt,name=float"`
	Turn    *kindsTurn        `protobuf:"bytes,15,opt,name=turn"`
	private string            `protobuf:"bytes,16,opt,name=private"`
	One     uint32            `protobuf:"varint,17,opt,name=one"`
}

type kindsTurn struct {
	Role    string   `protobuf:"bytes,1,opt,name=role"`
	Content string   `protobuf:"bytes,2,opt,name=content"`
	Ids     []uint32 `protobuf:"varint,3,rep,packed,name=ids"`
	Count   uint64   `protobuf:"varint,4,opt,name=count"`
}

func TestEveryKindOfField(t *testing.T) {
	zero32, n64 := uint32(0), int64(-7)
	msg := &kinds{
		Text: "text", Bytes: []byte("bytes"), I32: 3, U32: &zero32, I64: &n64, U64: 6, Wide: []int64{1, -1, 1 << 40},
		Texts: []string{"ab", "c"}, Blobs: [][]byte{[]byte("d"), []byte("ef")}, Info: map[string]string{"k": "v", "n": "12"},
		Turns: []*kindsTurn{{Role: "user", Content: "hi", Count: 2}, nil, {Content: "yes", Count: 3}},
		Batch: []*kindsTurn{{Ids: []uint32{1, 2}}, {}, {Ids: []uint32{3}}}, Enum: 4, Float: 5, Turn: &kindsTurn{Role: "r"}, private: "p", One: 9,
	}
	request := func(d Dialect, msg any) routing.Request {
		d.Methods = []string{"/a/b"}
		return read(mustTable(t, d).Lookup("/a/b"), everything, msg)
	}
	for path, want := range map[Path]string{
		"1": "text", "2": "bytes", "3": "3", "5": "-7", "6": "6", "10[k]": "v", "10[x]": "", "13": "4", "15.1": "r",
		"4": "", "14": "", "16": "", "99": "", "1.1": "", "1[k]": "", "10": "", "15": "", "11.99": "", "10[x]|1": "text", "text": "text",
	} {
		require.Equal(t, routing.Request{Model: want}, request(Dialect{Model: path}, msg), path)
		require.Equal(t, routing.Request{}, request(Dialect{Model: path}, &kinds{}), path)
		require.Equal(t, routing.Request{}, request(Dialect{Model: path}, (*kinds)(nil)), path)
	}
	for _, tt := range []struct {
		d    Dialect
		want routing.Prompt
	}{
		{Dialect{Tokens: "7"}, tokens(1, 1<<32-1, 0)},
		{Dialect{Tokens: "12[].3"}, tokens(1, 2, batchToken, 3)},
		{Dialect{Tokens: "17"}, tokens(9)},
		{Dialect{Tokens: "1|8"}, routing.Prompt{}},
		{Dialect{Prompt: "8[]"}, text("ab\xfdc")},
		{Dialect{Prompt: "9[]"}, text("d\xfdef")},
		{Dialect{Prompt: "11[].2"}, text("hi\xfdyes")},
		{Dialect{Messages: &Messages{"11", "1", "2"}}, text("\xffuser\xfethi\xff\xfet\xff\xfetyes")},
		{Dialect{Messages: &Messages{"11", "99", "2"}}, text("\xff\xfethi\xff\xfet\xff\xfetyes")},
		{Dialect{Messages: &Messages{"15", "1", "2"}}, text("\xffr\xfet")},
	} {
		require.Equal(t, tt.want, request(tt.d, msg).Prompt, "%+v", tt.d)
		require.Equal(t, routing.Prompt{}, request(tt.d, &kinds{}).Prompt)
	}
	m := mustTable(t, Dialect{Methods: []string{"/a/b"}, Usage: Usage{Prompt: "10[n]", Output: "11[].4", Cached: "4"}}).Lookup("/a/b")
	u := routing.NoUsage
	require.True(t, m.readUsage(&u, msg))
	require.Equal(t, routing.Usage{PromptTokens: 12, OutputTokens: 5, CachedTokens: 0}, u, "a zero that is set was said")
}
