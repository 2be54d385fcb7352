package dialect

// Builtin returns the dialects of the servers known here, by their published
// field numbers. The result may be changed.
func Builtin() []Dialect {
	inference := Dialect{ // vllm-rs
		RequestID: "1", Model: "2", Prompt: "3", Tokens: "4.1", Session: "13", Adapter: "15", CacheSalt: "10.2",
		MaxTokens: "8.1", DefaultMaxTokens: 20, OneOf: [][]int32{{3, 4}},
		Usage: Usage{Prompt: "1.1", Output: "2[].8.1", OutputDelta: "2[].3"},
	}
	older := inference // before sessions and adapters had fields
	older.Session, older.Adapter = "", ""
	inference.Media = &Media{Path: "14", ID: "6|7.5", Offset: "7.3"}
	// An Abort is named for servers whose engines may go on when a call is cancelled. SGLang's
	// own server aborts by itself.
	inference.Abort = "/vllm.Control/Abort"

	openAI := Dialect{JSONBody: "1", SplitModel: true, Usage: Usage{JSON: "1"}}
	metaInfo := Usage{Prompt: "2[prompt_tokens]", Output: "2[completion_tokens]", Cached: "2[cached_tokens]"}
	kserve := Dialect{
		Model: "1", RequestID: "3", Session: "4[sequence_id].3|4[sequence_id].2|4[sequence_id].5",
		Tensors: &Tensors{Text: "text_input", Tokens: "input_ids", MaxTokens: "max_tokens",
			Adapter: "lora_task_id", Parameters: "sampling_parameters"},
	}
	localAI := Dialect{
		Prompt: "1", Messages: &Messages{Path: "44", Role: "1", Content: "2"}, RequestID: "47", MaxTokens: "4",
		Usage: Usage{Prompt: "3", Output: "2"},
	}
	// Chunk and complete of the dialects that come from SMG differ in where the
	// oneof stands. original_text is for debugging and may be empty: not read.
	chunkFirst := Usage{Prompt: "1.2|2.3", Output: "1.3|2.4", Cached: "1.4|2.5"}
	// VllmEngine's chunks carry deltas. Its complete carries the total, or in a stream the last
	// delta again, which is no more than the sum.
	chunkDelta := Usage{Prompt: "1.2|2.3", OutputDelta: "1.3", Output: "2.4", Cached: "1.4|2.5"}
	chunkSecond := Usage{Prompt: "2.2|3.3", Output: "2.3|3.4", Cached: "2.4|3.5"}

	return []Dialect{
		inference.on("/vllm.Inference/Generate", "/vllm.Inference/GenerateStream"),
		older.on("/vllm.Generate/Generate", "/vllm.Generate/GenerateStream"),

		Dialect{RequestID: "1", Prompt: "3", Tokens: "2.2", MaxTokens: "4.8", OneOf: [][]int32{{2, 3}}, Usage: chunkDelta,
			Media: &Media{Path: "7", ID: "6[]", Offset: "5[].1"}, Rank: "9", Abort: "/vllm.grpc.engine.VllmEngine/Abort"}.
			on("/vllm.grpc.engine.VllmEngine/Generate"),
		Dialect{RequestID: "1", Tokens: "2.2", Abort: "/vllm.grpc.engine.VllmEngine/Abort"}.
			on("/vllm.grpc.engine.VllmEngine/Embed"),

		Dialect{RequestID: "1", Tokens: "2.2", Adapter: "15", MaxTokens: "4.8", Usage: chunkSecond,
			Media: &Media{Path: "3", Offset: "11[].1"}, Rank: "16", Abort: "/sglang.grpc.scheduler.SglangScheduler/Abort"}.
			on("/sglang.grpc.scheduler.SglangScheduler/Generate"),
		Dialect{RequestID: "1", Tokens: "2.2", Prompt: "10[]", Rank: "8", Abort: "/sglang.grpc.scheduler.SglangScheduler/Abort"}.
			on("/sglang.grpc.scheduler.SglangScheduler/Embed"),

		Dialect{Prompt: "1", MaxTokens: "2.8", RequestID: "8", Adapter: "9", Session: "13|10", Rank: "11", Usage: metaInfo}.
			on("/sglang.runtime.v1.SglangService/TextGenerate"),
		Dialect{Tokens: "1", MaxTokens: "2.8", RequestID: "7", Adapter: "8", Session: "12|9", Rank: "10", Usage: metaInfo}.
			on("/sglang.runtime.v1.SglangService/Generate"),
		openAI.on("/sglang.runtime.v1.SglangService/ChatComplete", "/sglang.runtime.v1.SglangService/Complete"),
		Dialect{Prompt: "1", RequestID: "2", Session: "3"}.
			on("/sglang.runtime.v1.SglangService/TextEmbed"),
		Dialect{Tokens: "1", RequestID: "2", Session: "3"}.
			on("/sglang.runtime.v1.SglangService/Embed"),
		Dialect{Prompt: "1", Tokens: "2", RequestID: "3", Session: "4"}.
			on("/sglang.runtime.v1.SglangService/Classify"),

		// One or many of each, where one is field 1 and a list of many field 2.
		Dialect{Prompt: "2.1|2.2.1[]", Tokens: "3.1.1|3.2.1[].1", RequestID: "1.1", MaxTokens: "5.1.1", DefaultMaxTokens: 128, Rank: "17",
			Media: &Media{Path: "19|20|21|22"},
			Usage: Usage{Prompt: "1.2.2", Output: "1.2.3"}}.
			on("/sglang.api.v1.SglangService/Generate"),

		Dialect{RequestID: "1", Tokens: "2.2", MaxTokens: "5", Adapter: "13.1", CacheSalt: "19",
			Usage: Usage{Prompt: "2.3|3.5", Output: "2.4|3.6", Cached: "2.5|3.7"}, Abort: "/trtllm.TrtllmService/Abort"}.
			on("/trtllm.TrtllmService/Generate"),
		Dialect{RequestID: "1", Tokens: "2.2", Abort: "/trtllm.TrtllmService/Abort"}.
			on("/trtllm.TrtllmService/Embed"),
		// The two numbers inside tokenized are swapped in these two.
		Dialect{RequestID: "1", Tokens: "2.1", MaxTokens: "3.8", Usage: chunkSecond, Abort: "/tokenspeed.grpc.scheduler.TokenSpeedScheduler/Abort"}.
			on("/tokenspeed.grpc.scheduler.TokenSpeedScheduler/Generate"),
		Dialect{RequestID: "1", Tokens: "2.1", MaxTokens: "3.8", Usage: chunkSecond, Abort: "/smg.worker.v1.WorkerInference/Abort"}.
			on("/smg.worker.v1.WorkerInference/Generate"),
		Dialect{RequestID: "1", Prompt: "3", Tokens: "2.2", MaxTokens: "4.9", OneOf: [][]int32{{2, 3}}, Usage: chunkFirst}.
			on("/mlx.grpc.engine.MlxEngine/Generate"),
		// The session inside kv is a handle for KV transfer, not a conversation.
		Dialect{RequestID: "1", Model: "2", Prompt: "3", Tokens: "4.1", MaxTokens: "6.1", CacheSalt: "8.3", Adapter: "11",
			OneOf: [][]int32{{3, 4}}, Usage: Usage{Prompt: "10.1", Output: "10.2", Cached: "10.4"}, Abort: "/openengine.v1.Control/Abort"}.
			on("/openengine.v1.Inference/Generate"),

		kserve.on("/inference.GRPCInferenceService/ModelInfer"),
		kserve.on("/inference.GRPCInferenceService/ModelStreamInfer"),

		Dialect{Model: "1", Adapter: "4|2", Prompt: "3[].2", MaxTokens: "10.3.1", Usage: Usage{Prompt: "1[].6", Output: "1[].2"}}.
			on("/fmaas.GenerationService/Generate"),
		Dialect{Model: "1", Adapter: "4|2", Prompt: "3.2", MaxTokens: "10.3.1", Usage: Usage{Prompt: "6", Output: "2"}}.
			on("/fmaas.GenerationService/GenerateStream"),

		localAI.on("/backend.Backend/Predict", "/backend.Backend/PredictStream"),
	}
}

func (d Dialect) on(methods ...string) Dialect {
	d.Methods = methods
	return d
}

// unknown is the dialect of methods that nobody described.
var unknown = Dialect{
	Name:      "unknown",
	Prompt:    "prompt",
	Tokens:    "prompt_token_ids|input_ids",
	Messages:  &Messages{Path: "messages", Role: "role", Content: "content"},
	Session:   "session_id",
	Model:     "model|model_name",
	Adapter:   "lora_name|adapter|lora_id",
	CacheSalt: "cache_salt",
	RequestID: "request_id",
	MaxTokens: "max_tokens|max_new_tokens",
}
