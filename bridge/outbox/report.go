package outbox

import (
	"cmp"
	"slices"

	"forewarn/bridge/delivery"
)

// report takes what became of deliveries of the route.
func (c *change) report(r *route, rep delivery.Report) {
	for _, i := range rep.Failed {
		if e := r.pending[i.Seq]; e != nil {
			c.failed(e, rep)
		}
	}
	for _, i := range rep.FellBack {
		if e := r.pending[i.Seq]; e != nil && !e.item.FellBack {
			c.fellBack(e)
		}
	}
	for _, i := range rep.Superseded {
		if e := r.pending[i.Seq]; e != nil {
			c.settle(e, StateSuperseded, "", delivery.Answer{}, e.item.Attempts)
		}
	}
	for _, i := range rep.Accepted {
		c.accepted(r, i, rep)
	}
	for _, i := range rep.Dead {
		if e := r.pending[i.Seq]; e != nil {
			c.giveUp(e, rep.Reason, rep.Error, tried(rep, i))
		}
	}
	for _, items := range [][]*delivery.Item{rep.Accepted, rep.Failed, rep.Dead} {
		for _, i := range items {
			c.keepReceipt(r, i, rep.Answer.Receipt)
		}
	}
	c.reported[r] += len(rep.Accepted) + len(rep.Superseded)
}

// failed notes an attempt that is to be repeated. It is still pending, so its reader sees it at once.
func (c *change) failed(e *entry, rep delivery.Report) {
	next := e.copy()
	next.tried = rep.Now.UTC()
	next.item.Attempts++
	next.item.Next = rep.Next.UTC()
	next.item.Error = cmp.Or(rep.Error, e.item.Error)
	next.item.Batch = cmp.Or(rep.Batch, e.item.Batch)
	if rep.Answer.Progress != nil {
		next.item.Progress = slices.Clone(rep.Answer.Progress)
	}
	c.replaceNow(e, next)
}

// fellBack makes a delivery pending for the fallback of its route too.
func (c *change) fellBack(e *entry) {
	c.fallBack(e, e.item.Error)
	next := e.copy()
	next.item.FellBack = true
	c.replaceNow(e, next)
}

// replaceNow is replace for what doesn't have to be durable before it is seen.
func (c *change) replaceNow(e, next *entry) {
	c.replace(e, next)
	if e.offered {
		next.offered = true
		next.route.reader.give(next)
	} else {
		c.offers = append(c.offers, next)
	}
}

// accepted settles a delivery, whatever became of it meanwhile.
func (c *change) accepted(r *route, i *delivery.Item, rep delivery.Report) {
	if i.Seq <= c.foreign {
		return // another VM's
	}
	r.delivered++
	r.accepted = rep.Now
	m, e, letter := c.messages[i.Seq], r.pending[i.Seq], c.dead[r.name+"/"+seqKey(i.Seq)]
	if m == nil {
		m = &message{seq: i.Seq, id: i.ID, group: i.Group}
	}
	c.record(m, r.name, StateAccepted, "", rep.Answer, i.Attempts+1)
	if letter != nil { // it was delivered after all
		c.forgetDead(letter)
	}
	if e != nil {
		c.remove(e)
	}
}

// tried says whether the dead delivery was given up over an attempt that isn't counted yet.
func tried(rep delivery.Report, i *delivery.Item) bool {
	return (rep.Reason == delivery.ReasonRejected || rep.Reason == delivery.ReasonExpired) &&
		!slices.ContainsFunc(rep.Failed, func(f *delivery.Item) bool { return f.Seq == i.Seq })
}

func (c *change) keepReceipt(r *route, i *delivery.Item, receipt []byte) {
	if receipt == nil || i.Group == "" || i.Seq <= c.foreign {
		return
	}
	receipt = slices.Clone(receipt)
	c.setReceipt(i.Group, r.name, receipt)
	c.write(bucketReceipts, i.Group+"/"+r.name, receipt)
}
