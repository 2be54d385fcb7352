package requestkey

import (
	"sync"

	"github.com/warmpath/warmpath/balancer/dialect"
)

// builtinMethods are the methods of these servers. The one without a name is that of all which nothing describes.
var builtinMethods = sync.OnceValue(func() map[string]*Method {
	known := make(map[string]*Method)
	for _, d := range Builtin {
		m, err := newMethod(d, known)
		if engine, ok := engineLegs[d.Methods[0]]; ok && err == nil {
			m.legs.drain = true
			if engine != nil {
				other, _ := compile(dialect.Dialect{KV: engine})
				m.legs.engine, other.legs.drain = other.legs, true
			}
		}
		if err != nil {
			panic(err) // the data is tested
		}
		for _, name := range d.Methods {
			known[name] = m
		}
	}
	known[""], _ = compile(unknown)
	return known
})

// Where the responses of several servers count tokens. Chunk and complete of the
// dialects that come from SMG differ in where the oneof stands.
var (
	chunkFirst  = dialect.Usage{Prompt: "1.2|2.3", Output: "1.3|2.4", Cached: "1.4|2.5"}
	chunkSecond = dialect.Usage{Prompt: "2.2|3.3", Output: "2.3|3.4", Cached: "2.4|3.5"}
	// VllmEngine's chunks carry deltas. Its complete carries the total, or in a stream the last
	// delta again, which is no more than the sum.
	chunkDelta = dialect.Usage{Prompt: "1.2|2.3", OutputDelta: "1.3", Output: "2.4", Cached: "1.4|2.5"}
	metaInfo   = dialect.Usage{Prompt: "2[prompt_tokens]", Output: "2[completion_tokens]", Cached: "2[cached_tokens]"}
)

// legFields are what the request of a leg gets.
type legFields = map[dialect.Path]string

// mooncake are the legs of VllmEngine where a replica pushes its KV cache with Mooncake. A bootstrap server brings the
// legs together by the id of the transfer.
var mooncake = &dialect.KV{
	Params: "8|6",
	Prefill: legFields{"4.8": "1", "4.9": "1", "5": "0",
		"8": `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"$room"}`},
	Decode: legFields{"8": `{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"$room",` +
		`"remote_engine_id":"$engine","remote_bootstrap_addr":"http://$address"}`},
}

// engineLegs are the engines that may not survive the end of a decode leg during the transfer, by the first of their
// methods: a leg that is cancelled goes on until its first response message. The value are the legs where the prefill
// replica has an engine id; nil = the same.
var engineLegs = map[string]*dialect.KV{
	"/vllm.grpc.engine.VllmEngine/Generate":                   mooncake,
	"/sglang.grpc.scheduler.SglangScheduler/Generate":         nil,
	"/tokenspeed.grpc.scheduler.TokenSpeedScheduler/Generate": nil,
}

// bootstrap are the legs of SGLang's servers: both carry the address of the prefill replica's bootstrap server, and a
// room there.
func bootstrap(params, sequences dialect.Path, room legFields) *dialect.KV {
	return &dialect.KV{Params: params, Sequences: sequences, Prefill: room, Decode: room}
}

// Builtin are the dialects of the servers known here, by their published field numbers. It is never written. An Abort
// is named for servers whose engines may go on when a call is cancelled; SGLang's own server aborts by itself.
// original_text is for debugging and may be empty: not read.
var Builtin = []dialect.Dialect{
	{
		Methods:   []string{"/vllm.Generate/Generate", "/vllm.Generate/GenerateStream"}, // before it had sessions and adapters
		MaxTokens: "8.1",
		RequestID: "1", Model: "2", Prompt: "3", Tokens: "4.1", CacheSalt: "10.2",
		Usage: dialect.Usage{Prompt: "1.1", Output: "2[].8.1", OutputDelta: "2[].3"},
	}, {
		Methods: []string{"/vllm.Inference/Generate", "/vllm.Inference/GenerateStream"}, Like: "/vllm.Generate/Generate",
		Priority: "12", Session: "13", Adapter: "15", Media: &dialect.Media{Path: "14", ID: "6|7.5", Offset: "7.3"}, Abort: "/vllm.Control/Abort",
		KV: &dialect.KV{
			Params: "10.3", Sequences: "6.1", Answer: "2.8.6",
			Prefill: legFields{"8.1": "1", "8.2": "1", "10.3.1[do_remote_decode].4": "true"},
			Decode:  legFields{"10.3": "$answer"},
		},
	}, {
		Methods:   []string{"/vllm.grpc.engine.VllmEngine/Generate"},
		MaxTokens: "4.8",
		RequestID: "1", Prompt: "3", Tokens: "2.2", Rank: "9", Usage: chunkDelta,
		// Prepared media of one modality, of others, and addresses.
		Media: &dialect.Media{Path: "7|11|10", ID: "6[]|1[].2", Offset: "5[].1"}, Abort: "/vllm.grpc.engine.VllmEngine/Abort",
		KV: &dialect.KV{
			Params: "8|6", Sequences: "4.15", Answer: "2.12",
			Prefill: legFields{"4.8": "1", "4.9": "1", "8": `{"do_remote_decode":true}`},
			Decode:  legFields{"8": "$answer"},
		},
	}, {
		Methods:   []string{"/vllm.grpc.engine.VllmEngine/Embed"},
		RequestID: "1", Tokens: "2.2", Abort: "/vllm.grpc.engine.VllmEngine/Abort",
	}, {
		Methods:   []string{"/sglang.grpc.scheduler.SglangScheduler/Generate"},
		MaxTokens: "4.8",
		RequestID: "1", Tokens: "2.2", Adapter: "15", Rank: "16", Usage: chunkSecond,
		Media: &dialect.Media{Path: "3", Offset: "11[].1"}, Abort: "/sglang.grpc.scheduler.SglangScheduler/Abort",
		KV: bootstrap("10", "4.17", legFields{"10.1": "$host", "10.2": "$port", "10.3": "$room32"}),
	}, {
		Methods:   []string{"/sglang.grpc.scheduler.SglangScheduler/Embed"},
		RequestID: "1", Tokens: "2.2", Prompt: "10[]", Rank: "8",
		Media: &dialect.Media{Path: "4", Offset: "11[].1"}, Abort: "/sglang.grpc.scheduler.SglangScheduler/Abort",
	}, {
		Methods: []string{"/sglang.runtime.v1.SglangService/TextGenerate"},
		Prompt:  "1", RequestID: "8", Adapter: "9", Session: "13|10", Rank: "11", Usage: metaInfo,
		KV: bootstrap("14", "2.13", legFields{"14.1": "$host", "14.2": "$port", "14.3": "$room"}),
	}, {
		Methods: []string{"/sglang.runtime.v1.SglangService/Generate"},
		Tokens:  "1", RequestID: "7", Adapter: "8", Session: "12|9", Rank: "10", Usage: metaInfo,
		Priority: "14", LargestFirst: true,
		KV: bootstrap("13", "2.13", legFields{"13.1": "$host", "13.2": "$port", "13.3": "$room"}),
	}, {
		Methods:  []string{"/sglang.runtime.v1.SglangService/ChatComplete", "/sglang.runtime.v1.SglangService/Complete"},
		JSONBody: "1", Usage: dialect.Usage{JSON: "1"},
	}, {
		Methods: []string{"/sglang.runtime.v1.SglangService/TextEmbed"},
		Prompt:  "1", RequestID: "2", Session: "3",
	}, {
		Methods: []string{"/sglang.runtime.v1.SglangService/Embed"},
		Tokens:  "1", RequestID: "2", Session: "3",
	}, {
		Methods: []string{"/sglang.runtime.v1.SglangService/Classify"},
		Prompt:  "1", Tokens: "2", RequestID: "3", Session: "4",
	}, {
		// One or many of each, where one is field 1 and a list of many field 2.
		Methods: []string{"/sglang.api.v1.SglangService/Generate"},
		Prompt:  "2.1|2.2.1[]", Tokens: "3.1.1|3.2.1[].1", RequestID: "1.1",
		Rank:  "17",
		Media: &dialect.Media{Path: "19|20|21|22"}, Usage: dialect.Usage{Prompt: "1.2.2", Output: "1.2.3"},
		KV: bootstrap("12|13|14", "5.1.13", legFields{"12.1.1": "$host", "13.1.1": "$port", "14.1.1": "$room"}),
	}, {
		Methods:   []string{"/trtllm.TrtllmService/Generate"},
		MaxTokens: "5",
		RequestID: "1", Tokens: "2.2", Adapter: "13.1", CacheSalt: "19", Media: &dialect.Media{Path: "15"},
		Usage: dialect.Usage{Prompt: "2.3|3.5", Output: "2.4|3.6", Cached: "2.5|3.7"}, Abort: "/trtllm.TrtllmService/Abort",
	}, {
		Methods:   []string{"/trtllm.TrtllmService/Embed"},
		RequestID: "1", Tokens: "2.2", Abort: "/trtllm.TrtllmService/Abort",
	}, {
		// The two numbers inside tokenized are swapped in these two.
		Methods:   []string{"/tokenspeed.grpc.scheduler.TokenSpeedScheduler/Generate"},
		RequestID: "1", Tokens: "2.1", Rank: "12", Usage: chunkSecond,
		Media: &dialect.Media{Path: "9.1", ID: "2", Offset: "5[].1"}, Abort: "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/Abort",
		KV: bootstrap("11", "3.15", legFields{"11.1": "$host", "11.2": "$port", "11.3": "$room"}),
	}, {
		Methods:   []string{"/smg.worker.v1.WorkerInference/Generate"},
		RequestID: "1", Tokens: "2.1", Rank: "9", Usage: chunkSecond,
		Abort: "/smg.worker.v1.WorkerInference/Abort",
	}, {
		Methods:   []string{"/mlx.grpc.engine.MlxEngine/Generate"},
		RequestID: "1", Prompt: "3", Tokens: "2.2",
		Usage: chunkFirst,
	}, {
		// The session inside kv is a handle for KV transfer, not a conversation.
		Methods:   []string{"/openengine.v1.Inference/Generate"},
		RequestID: "1", Model: "2", Prompt: "3", Tokens: "4.1", CacheSalt: "8.4|8.3", Adapter: "11",
		Media: &dialect.Media{Path: "10", ID: "6|2|3|4"}, Usage: dialect.Usage{Prompt: "10.1", Output: "10.2", Cached: "10.4"},
		Abort: "/openengine.v1.Control/Abort",
		KV: &dialect.KV{ // prefill_ready, where 0.1.0 had it and where it is now
			Params: "8.1", Sequences: "5.9", Answer: "4.1|3.1",
			Prefill: legFields{"12.1[request_type].3": "context_only"}, Decode: legFields{"8.1": "$answer"},
		},
	}, {
		Methods: []string{"/inference.GRPCInferenceService/ModelInfer", "/inference.GRPCInferenceService/ModelStreamInfer"},
		Model:   "1", RequestID: "3", Session: "4[sequence_id].3|4[sequence_id].2|4[sequence_id].5",
		Prompt: "tensor[text_input]", Tokens: "tensor[input_ids]",
		Adapter: "tensor[lora_task_id]", JSONBody: "tensor[sampling_parameters]",
	}, {
		Methods: []string{"/fmaas.GenerationService/Generate"},
		Model:   "1", Adapter: "4|2", Prompt: "3[].2", Usage: dialect.Usage{Prompt: "1[].6", Output: "1[].2"},
	}, {
		Methods: []string{"/fmaas.GenerationService/GenerateStream"},
		Model:   "1", Adapter: "4|2", Prompt: "3.2", Usage: dialect.Usage{Prompt: "6", Output: "2"},
	}, {
		Methods: []string{"/backend.Backend/Predict", "/backend.Backend/PredictStream"},
		Prompt:  "1", Messages: &dialect.Messages{Path: "44", Role: "1", Content: "2"}, RequestID: "47",
		Usage: dialect.Usage{Prompt: "3", Output: "2"},
	},
}

// unknown is the dialect of methods that nothing describes.
var unknown = dialect.Dialect{
	Prompt:    "prompt",
	Tokens:    "prompt_token_ids|input_ids",
	Messages:  &dialect.Messages{Path: "messages", Role: "role", Content: "content"},
	Session:   "session_id",
	Model:     "model|model_name",
	Adapter:   "lora_name|adapter|lora_id",
	CacheSalt: "cache_salt",
	RequestID: "request_id",
}
