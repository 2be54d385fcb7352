package kvevents

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/warmpath/warmpath/internal/kvevents"
)

// maxFields is more than any event has. What follows is not looked at.
const maxFields = 16

// The orders of fields behind the kind.
var (
	storedFields = []kvevents.Field{
		kvevents.FieldHashes, kvevents.FieldParent, kvevents.FieldTokens, kvevents.FieldBlockSize,
		kvevents.FieldAdapterID, kvevents.FieldMedium, kvevents.FieldAdapter, kvevents.FieldExtraKeys,
	}
	removedFields = []kvevents.Field{kvevents.FieldHashes, kvevents.FieldMedium}
	imageFields   = []kvevents.Field{kvevents.FieldImages, kvevents.FieldGroup, kvevents.FieldSpec}
	groupFields   = []kvevents.Field{kvevents.FieldGroup, kvevents.FieldSpec, kvevents.NoField, kvevents.FieldLocality}
)

// setPositional reads an event whose fields have no names. Which field stands where differs between versions: lora_id
// may be missing, block_mm_infos may stand before the group, and defaults at the end are left out. The types show
// which.
func setPositional(b *kvevents.Batch, v value) error {
	var fields [maxFields]value
	n, seen := 0, 0
	err := v.each(func(v value) error {
		if seen++; seen > maxFields {
			return nil
		}
		if msgp.NextType(v) == msgp.MapType { // SGLang had the salt in one, behind all others
			return setNamed(b, v)
		}
		fields[n] = v
		n++
		return nil
	})
	if err != nil {
		return err
	}
	if n == 0 {
		return kvevents.ErrType
	}
	if err := b.Set(kvevents.FieldKind, fields[0]); err != nil {
		return err
	}
	for i, f := range fieldOrder(b.Kind(), fields[1:n]) {
		if err := b.Set(f, fields[1+i]); err != nil {
			return err
		}
	}
	return nil
}

// fieldOrder returns what the fields behind the kind are.
func fieldOrder(k kvevents.Kind, fields []value) []kvevents.Field {
	var order []kvevents.Field
	switch k {
	case kvevents.Stored:
		order = append(order, storedFields...)
		if withoutAdapterID(fields) {
			order = append(order[:4], storedFields[5:]...)
		}
	case kvevents.Removed:
		order = append(order, removedFields...)
	default:
		return nil
	}
	if imagesFirst(fields[min(len(order), len(fields)):]) {
		order = append(order, imageFields...)
	} else {
		order = append(order, groupFields...)
	}
	return order[:min(len(order), len(fields))]
}

// withoutAdapterID reports whether the medium stands in the place of lora_id.
func withoutAdapterID(fields []value) bool {
	if len(fields) > 4 {
		if name, ok := fields[4].Text(); ok {
			_, known := kvevents.TierOf(string(name))
			return known
		}
	}
	return len(fields) > 6 && msgp.NextType(fields[6]) == msgp.ArrayType
}

// imagesFirst reports whether block_mm_infos stands before group_idx, kv_cache_spec_kind, the window and the locality.
func imagesFirst(tail []value) bool {
	typeAt := func(i int) msgp.Type {
		if i >= len(tail) {
			return msgp.NilType
		}
		return msgp.NextType(tail[i])
	}
	number := func(i int) bool { return typeAt(i) == msgp.IntType || typeAt(i) == msgp.UintType }
	return typeAt(0) == msgp.ArrayType || number(1) || typeAt(2) == msgp.StrType || number(3)
}
