package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"os"
)

// task is what a worker trains.
type task struct {
	layout        layout
	stepsPerEpoch uint64 // 0: unknown
	first         func(seed uint64) state
	step          func(theta []float32, random *rand.Rand) (gradient []float32, loss float64, samples int)
	report        func(theta []float32)
}

// readTask reads a task of the conformance kit, or one of `gemps export-task`.
func readTask(kit, path string) (*task, error) {
	if kit != "" {
		return readQuadratic(kit)
	}
	p := &perceptron{}
	err := readJSON(path, p)
	if err == nil && (p.Activation != "relu" || len(p.Hidden) != 1 || len(p.Train.Labels) < batch) {
		err = errors.New("it has no perceptron with one hidden layer and ReLU")
	}
	if err != nil {
		return nil, &ending{refused, fmt.Sprintf("--task %s: %v; gemps export-task digits writes one", path, err)}
	}
	return &task{p.Layout, uint64(len(p.Train.Labels) / batch), p.first, p.step, p.report}, nil
}

func readJSON(path string, into interface{}) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

const batch = 32 // samples a step

// samples are inputs, in the file from 0 to its maximum, and their classes.
type samples struct {
	Inputs [][]float32 `json:"inputs"`
	Labels []int       `json:"labels"`
}

// perceptron is the task in a file of `gemps export-task`: a hidden layer with ReLU, and cross-entropy.
type perceptron struct {
	Layout     layout  `json:"layout"` // weight [hidden, features], bias, weight [classes, hidden], bias
	Hidden     []int   `json:"hidden"`
	Activation string  `json:"activation"`
	Features   int     `json:"features"`
	Classes    int     `json:"classes"`
	Maximum    float32 `json:"maximum"`
	Train      samples `json:"train"`
	HeldOut    samples `json:"held_out"`

	order []int // what is left of this pass over the samples
}

// split returns the rows of both weights, and the biases behind each.
func (p *perceptron) split(theta []float32) (first [][]float32, bias []float32, second [][]float32, last []float32) {
	first, theta = rows(theta, p.Hidden[0], p.Features)
	bias, theta = theta[:p.Hidden[0]], theta[p.Hidden[0]:]
	second, last = rows(theta, p.Classes, p.Hidden[0])
	return first, bias, second, last
}

func rows(values []float32, count, width int) (cut [][]float32, rest []float32) {
	for ; count > 0; count-- {
		cut, values = append(cut, values[:width]), values[width:]
	}
	return cut, values
}

// first returns values that are uniform in +-1 / sqrt(features).
func (p *perceptron) first(seed uint64) state {
	random := rand.New(rand.NewSource(int64(seed)))
	count, _ := p.Layout.sizes()
	theta := make([]float32, count)
	for i := range theta {
		theta[i] = float32((2*random.Float64() - 1) / math.Sqrt(float64(p.Features)))
	}
	return state{parameters: theta}
}

func (p *perceptron) step(theta []float32, random *rand.Rand) ([]float32, float64, int) {
	if len(p.order) < batch { // what is left over comes in another pass
		p.order = random.Perm(len(p.Train.Labels))
	}
	gradient, loss := make([]float32, len(theta)), 0.0
	for _, sample := range p.order[:batch] {
		loss += p.backward(theta, gradient, p.Train.Inputs[sample], p.Train.Labels[sample]) / batch
	}
	p.order = p.order[batch:]
	return gradient, loss, batch
}

// forward returns what the hidden layer gives on, and the probability of each class.
func (p *perceptron) forward(theta, input []float32) (hidden, odds []float32) {
	first, bias, second, last := p.split(theta)
	for j, row := range first {
		hidden = append(hidden, float32(math.Max(0, float64(bias[j]+dot(row, input)/p.Maximum))))
	}
	sum := float32(0)
	for j, row := range second {
		odds = append(odds, float32(math.Exp(float64(last[j]+dot(row, hidden)))))
		sum += odds[j]
	}
	for j := range odds {
		odds[j] /= sum
	}
	return hidden, odds
}

// backward adds a sample's share of the batch's gradient, and returns the sample's loss.
func (p *perceptron) backward(theta, gradient, input []float32, label int) float64 {
	hidden, errors := p.forward(theta, input)
	loss := -math.Log(float64(errors[label]))
	errors[label]--
	_, _, weights, _ := p.split(theta)
	first, bias, second, last := p.split(gradient)
	slopes := make([]float32, len(hidden))
	for j, slope := range errors {
		last[j] += slope / batch
		add(second[j], slope/batch, hidden)
		add(slopes, slope/batch, weights[j])
	}
	for j, slope := range slopes {
		if hidden[j] > 0 {
			bias[j] += slope
			add(first[j], slope/p.Maximum, input)
		}
	}
	return loss
}

func dot(a, b []float32) (sum float32) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func add(to []float32, factor float32, values []float32) {
	for i, value := range values {
		to[i] += factor * value
	}
}

func (p *perceptron) report(theta []float32) {
	right := 0
	for i, label := range p.HeldOut.Labels {
		_, odds := p.forward(theta, p.HeldOut.Inputs[i])
		largest := float32(0)
		for _, one := range odds {
			largest = float32(math.Max(float64(largest), float64(one)))
		}
		if odds[label] == largest {
			right++
		}
	}
	say("accuracy %.4f on the held-out samples", float64(right)/float64(len(p.HeldOut.Labels)))
}
