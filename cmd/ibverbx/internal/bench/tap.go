package bench

import "ibverbx/verbs"

// tap is a device that notes the queue pairs made on it, so that a fault can strike one of them.
type tap struct {
	verbs.Device
	made *[]verbs.QP
}

// AllocPD makes a protection domain that notes its queue pairs.
func (t tap) AllocPD() (verbs.PD, error) {
	pd, err := t.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	return tapPD{pd, t.made}, nil
}

type tapPD struct {
	verbs.PD
	made *[]verbs.QP
}

// CreateQP makes a queue pair and notes it.
func (t tapPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	qp, err := t.PD.CreateQP(cfg)
	if err == nil {
		*t.made = append(*t.made, qp)
	}
	return qp, err
}
