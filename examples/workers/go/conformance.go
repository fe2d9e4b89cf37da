// The task of the conformance kit: a template needs this file only to be tested.

package main

import (
	"math/rand"
	"strings"
)

// readQuadratic reads the kit's task, whose gradient is theta.
func readQuadratic(path string) (*task, error) {
	var file struct {
		Layout         layout   `json:"layout"`
		DeltaTypes     []string `json:"delta_wire_types"`
		ParameterTypes []string `json:"parameter_wire_types"`
	}
	if err := readJSON(path, &file); err != nil {
		return nil, err
	}
	deltas, parameters := strings.Join(file.DeltaTypes, " "), strings.Join(file.ParameterTypes, " ")
	if !strings.Contains(deltas, "float32") || !strings.Contains(parameters, "float32") {
		return nil, &ending{notSpoken, "this worker speaks float32 alone"}
	}
	count, buffers := file.Layout.sizes()
	first := func(uint64) state {
		theta := make([]float32, count)
		for i := range theta {
			theta[i] = float32(i%509-254) / 256
		}
		return state{theta, make([]byte, buffers)}
	}
	step := func(theta []float32, _ *rand.Rand) ([]float32, float64, int) { return theta, 0, 0 }
	return &task{file.Layout, 0, first, step, func([]float32) {}}, nil
}
