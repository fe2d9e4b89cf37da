package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strings"

	pb "gemps.dev/gen/gemps/v1"
)

// tensor is one of a model, as the files of tasks have it.
type tensor struct {
	Name        string   `json:"name"`
	Shape       []uint64 `json:"shape"`
	ElementType string   `json:"element_type"`
	Kind        string   `json:"kind"`
	Aliases     []string `json:"aliases"`
	SHA256      string   `json:"sha256"`
}

// layout has PARAMETERs, then BUFFERs, then FROZEN tensors.
type layout []tensor

// elementBytes is for BUFFERs; PARAMETERs travel as float32.
var elementBytes = map[string]int{
	"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1,
	"bool": 1,
}

// sizes returns the number of elements of all PARAMETERs, and of bytes of all BUFFERs.
func (l layout) sizes() (parameters, buffers int) {
	for _, one := range l {
		elements := 1
		for _, dimension := range one.Shape {
			elements *= int(dimension)
		}
		switch one.Kind {
		case "parameter":
			parameters += elements
		case "buffer":
			buffers += elements * elementBytes[one.ElementType]
		}
	}
	return parameters, buffers
}

func (l layout) message() *pb.Layout {
	message := &pb.Layout{}
	for _, one := range l {
		sha256, _ := hex.DecodeString(one.SHA256) // Join refuses a wrong one
		message.Tensors = append(message.Tensors, &pb.TensorSpec{
			Name: one.Name, Shape: one.Shape, Aliases: one.Aliases, Sha256: sha256,
			ElementType: pb.ElementType(pb.ElementType_value["ELEMENT_TYPE_"+strings.ToUpper(one.ElementType)]),
			Kind:        pb.TensorKind(pb.TensorKind_value["TENSOR_KIND_"+strings.ToUpper(one.Kind)]),
		})
	}
	return message
}

// state is what a payload has: all PARAMETERs, or a gradient of them, and the bytes of all BUFFERs.
type state struct {
	parameters []float32
	buffers    []byte
}

func (s state) encode() []byte {
	payload := make([]byte, 4*len(s.parameters), 4*len(s.parameters)+len(s.buffers))
	for i, value := range s.parameters {
		binary.LittleEndian.PutUint32(payload[4*i:], math.Float32bits(value))
	}
	return append(payload, s.buffers...)
}

func (l layout) decode(payload []byte) (state, error) {
	parameters, buffers := l.sizes()
	if len(payload) != 4*parameters+buffers {
		return state{}, fmt.Errorf("the server sent %d bytes of a model of %d", len(payload), 4*parameters+buffers)
	}
	values := make([]float32, parameters)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(payload[4*i:]))
	}
	return state{values, payload[4*parameters:]}, nil
}
