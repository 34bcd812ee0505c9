package imdstest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Play runs the scenario's steps at their times. It returns when the last one is done, or with ctx's error if that ends
// first. Speed divides every duration of the scenario; 0 means the Server's own speed.
//
// An event that no step starts will start at its NotBefore, and any event starts when it is approved. The EventIds are
// the same in every play of a scenario.
func (s *Server) Play(ctx context.Context, sc Scenario, speed float64) error {
	if err := sc.check(); err != nil {
		return fmt.Errorf("scenario %s: %w", sc.Name, err)
	}
	if speed <= 0 {
		speed = s.opts.Speed
	}
	p := &play{Server: s, Scenario: sc, speed: speed, ids: make(map[string]string)}
	p.assignVMs()
	begin := s.opts.Now()
	for _, step := range sc.Steps {
		if err := sleep(ctx, begin.Add(scale(step.At, speed)).Sub(s.opts.Now())); err != nil {
			return err
		}
		p.run(step)
	}
	return nil
}

// play is a scenario that is running.
type play struct {
	*Server
	Scenario
	speed   float64
	vmNames map[string]string // the scenario's name for a VM in lower case → the Server's
	ids     map[string]string // label → EventId
}

// assignVMs maps the scenario's VMs to the Server's. A Server without names takes the scenario's. One with too few gets
// the missing ones.
func (p *play) assignVMs() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ApproveDelay > 0 {
		p.approveDelay = scale(p.ApproveDelay, p.speed)
	}
	if len(p.opts.VMs) == 0 && len(p.Scenario.VMs) > 0 {
		p.vms = slices.Clone(p.Scenario.VMs)
	}
	p.vmNames = make(map[string]string)
	given := len(p.vms)
	for i, name := range p.Scenario.VMs {
		if i < given {
			p.vmNames[strings.ToLower(name)] = p.vms[i]
		} else if _, there := p.vm(name); !there {
			p.vms = append(p.vms, name)
		}
	}
}

func (p *play) run(step Step) {
	switch {
	case step.Schedule != nil:
		p.schedule(*step.Schedule)
	case step.Update != nil:
		p.Update(p.ids[step.Update.Event], func(e *Event) { p.alter(e, *step.Update) })
	case step.Start != "":
		p.Start(p.ids[step.Start])
	case step.End != "":
		p.End(p.ids[step.End])
	case step.Fault != nil:
		f := step.Fault.scaled(p.speed)
		if vm, ok := p.vmNames[strings.ToLower(f.VM)]; ok {
			f.VM = vm
		}
		p.setFault(f)
	case step.Reset:
		p.Reset()
	}
}

func (p *play) schedule(c Change) {
	e := Event{ID: c.ID, Type: "Reboot", Status: Scheduled}
	if e.ID == "" {
		e.ID = strings.ToUpper(uuidOf("scenario " + p.Name + " " + c.Event))
	}
	p.ids[c.Event] = e.ID
	if c.Notice == nil {
		if c.Type != "" {
			e.Type = c.Type
		}
		c.Notice = new(Notice(e.Type))
	}
	p.alter(&e, c)
	started := slices.ContainsFunc(p.Steps, func(step Step) bool { return step.Start == c.Event })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.startDue()
	p.Server.schedule(e, !started)
}

// alter sets the fields of e that c has. Only an event that has not started has a NotBefore.
func (p *play) alter(e *Event, c Change) {
	set := func(field *string, value string) {
		if value != "" {
			*field = value
		}
	}
	set(&e.Type, c.Type)
	set(&e.Status, c.Status)
	set(&e.Source, c.Source)
	if c.Description != nil {
		e.Description = *c.Description
	}
	if c.Duration != nil {
		e.Duration = new(*c.Duration)
	}
	if c.Notice != nil && e.Status == Scheduled {
		e.NotBefore = p.opts.Now().Add(scale(*c.Notice, p.speed))
	}
	if c.Resources != nil {
		e.Resources = slices.Clone(c.Resources)
		for i, name := range e.Resources {
			set(&e.Resources[i], p.vmNames[strings.ToLower(name)])
		}
	}
}

// sleep waits for d. It fails if ctx is done first.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
