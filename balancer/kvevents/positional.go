package kvevents

import "github.com/tinylib/msgp/msgp"

// maxFields is more than any event has. What follows is not looked at.
const maxFields = 16

// array reads an event whose fields have no names. Which field stands where differs between versions: lora_id may be
// missing, block_mm_infos may stand before the group, and defaults at the end are left out. The types tell.
func (r *eventReader) array(p []byte) error {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return err
	}
	var fields [maxFields][]byte
	count := 0
	for range min(n, maxFields) {
		rest, err := msgp.Skip(p)
		if err != nil {
			return err
		}
		if msgp.NextType(p) == msgp.MapType { // SGLang had the salt in one, behind all others
			if err := eachField(p, r.field); err != nil {
				return err
			}
		} else {
			fields[count] = p[:len(p)-len(rest)]
			count++
		}
		p = rest
	}
	if count == 0 {
		return errType
	}
	if _, err := r.readKind(fields[0]); err != nil {
		return err
	}
	names := fieldNames(r.kind, fields[:count])
	for i, name := range names {
		if _, err := r.field(name, fields[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// fieldNames returns the names of the fields behind the tag.
func fieldNames(k kind, fields [][]byte) []string {
	var names []string
	switch k {
	case stored:
		names = []string{"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys"}
		if withoutAdapterID(fields) {
			names = append(names[:4], "medium", "lora_name", "extra_keys")
		}
	case removed:
		names = []string{"block_hashes", "medium"}
	}
	behind := fields[min(1+len(names), len(fields)):]
	if k != cleared && k != unknownKind {
		if imagesFirst(behind) {
			names = append(names, "block_mm_infos", "group_idx", "kv_cache_spec_kind")
		} else {
			names = append(names, "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality")
		}
	}
	return names[:min(len(names), len(fields)-1)]
}

// withoutAdapterID reports whether the medium stands in the place of lora_id.
func withoutAdapterID(fields [][]byte) bool {
	if len(fields) > 5 && msgp.NextType(fields[5]) == msgp.StrType {
		name, _, err := msgp.ReadStringZC(fields[5])
		_, known := tierOf(string(name))
		return err == nil && known
	}
	return len(fields) > 7 && msgp.NextType(fields[7]) == msgp.ArrayType
}

// imagesFirst reports whether block_mm_infos stands before group_idx, kv_cache_spec_kind, the window and the locality.
func imagesFirst(tail [][]byte) bool {
	kindAt := func(i int) msgp.Type {
		if i >= len(tail) {
			return msgp.NilType
		}
		return msgp.NextType(tail[i])
	}
	number := func(i int) bool { return kindAt(i) == msgp.IntType || kindAt(i) == msgp.UintType }
	return kindAt(0) == msgp.ArrayType || number(1) || kindAt(2) == msgp.StrType || number(3)
}
