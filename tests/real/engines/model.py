"""Makes a small Llama with random weights, its tokenizer and a LoRA adapter: model.py OUT TEXT...

Nothing is downloaded. The weights come from a fixed seed, and the tokenizer is trained on the files TEXT, so two runs over
the same files give the same model.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tokenizer(texts):
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHATML,
        model_max_length=16384,
    )


def adapter(out, config):
    """Writes a LoRA adapter of rank 8 for the attention's query and value projections."""
    tensors, rank = {}, 8
    kv = config.hidden_size // config.num_attention_heads * config.num_key_value_heads
    for layer in range(config.num_hidden_layers):
        for name, width in (("q_proj", config.hidden_size), ("v_proj", kv)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_"
            tensors[at + "A.weight"] = torch.randn(rank, config.hidden_size)
            tensors[at + "B.weight"] = torch.randn(width, rank)
    out.mkdir()
    save_file(tensors, out / "adapter_model.safetensors")
    (out / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "r": rank,
                "lora_alpha": 2 * rank,
                "lora_dropout": 0.0,
                "bias": "none",
                "target_modules": ["q_proj", "v_proj"],
            }
        )
    )


def main():
    out, texts = Path(sys.argv[1]), sorted(sys.argv[2:])
    torch.manual_seed(20261128)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16384,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    model.lm_head.weight.data[:3] = 0  # at temperature 0 no special token is chosen, so outputs end at their bound only
    model.save_pretrained(out / "tiny")
    tokenizer(texts).save_pretrained(out / "tiny")
    adapter(out / "adapter", config)


main()
