// Package bpe turns text into token ids by byte-pair encoding. It is the engine
// behind the readers of tokenizer.json files and of tiktoken's encodings.
//
// The rule. Special tokens are found first, the leftmost, of those the longest.
// What is between them is normalised, cut into pieces, and in each piece the two
// neighbours whose merge has the lowest rank become one, the leftmost of equals,
// until no two merge.
//
// Complexity. Linear in the text; a piece of n symbols costs n log n. The context is
// looked at every 16 thousand symbols. Pieces are matches of regular expressions. Those
// of well-known encodings take time in proportion to the text; in others the search for
// one match may take a second.
//
// Guarantees. An Encoder does not change: any number of goroutines may use it.
// What it cannot do as the original does is refused when it is built, not done
// nearly so.
//
// Sources. Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words with
// Subword Units (2016); the file format of Hugging Face's tokenizers; OpenAI's
// tiktoken.
package bpe
