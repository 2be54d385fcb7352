package client

import (
	"reflect"

	"google.golang.org/protobuf/proto"
)

// another returns a message like m, nil where there is no telling how.
func another(m any) any {
	if p, ok := m.(proto.Message); ok {
		return p.ProtoReflect().New().Interface()
	}
	if v := reflect.ValueOf(m); v.Kind() == reflect.Pointer && !v.IsNil() {
		return reflect.New(v.Type().Elem()).Interface()
	}
	return nil
}

// copyTo makes the message that another returned the application's.
func copyTo(m, from any) {
	if p, ok := m.(proto.Message); ok {
		proto.Reset(p)
		proto.Merge(p, from.(proto.Message))
		return
	}
	reflect.ValueOf(m).Elem().Set(reflect.ValueOf(from).Elem())
}
