package verbs

import "strconv"

// Status is how a work request ended (enum ibv_wc_status). A status other than success is an error: it can be
// returned, compared with errors.Is, and says in words what happened.
type Status uint32

// The statuses of a work completion.
const (
	StatusSuccess          Status = 0
	StatusLocLenErr        Status = 1
	StatusLocQPOpErr       Status = 2
	StatusLocEECOpErr      Status = 3
	StatusLocProtErr       Status = 4
	StatusWRFlushErr       Status = 5
	StatusMWBindErr        Status = 6
	StatusBadRespErr       Status = 7
	StatusLocAccessErr     Status = 8
	StatusRemInvReqErr     Status = 9
	StatusRemAccessErr     Status = 10
	StatusRemOpErr         Status = 11
	StatusRetryExcErr      Status = 12
	StatusRNRRetryExcErr   Status = 13
	StatusLocRDDViolErr    Status = 14
	StatusRemInvRDReqErr   Status = 15
	StatusRemAbortErr      Status = 16
	StatusInvEECNErr       Status = 17
	StatusInvEECStateErr   Status = 18
	StatusFatalErr         Status = 19
	StatusRespTimeoutErr   Status = 20
	StatusGeneralErr       Status = 21
	StatusTMErr            Status = 22
	StatusTMRndvIncomplete Status = 23
)

// statusText holds, for each status, its verbs name and what it means.
var statusText = [...]struct{ name, words string }{
	StatusSuccess:          {"SUCCESS", "success"},
	StatusLocLenErr:        {"LOC_LEN_ERR", "local length error: a message did not fit the posted receive, or is longer than the NIC allows"},
	StatusLocQPOpErr:       {"LOC_QP_OP_ERR", "local queue pair operation error: the NIC could not carry out the request"},
	StatusLocEECOpErr:      {"LOC_EEC_OP_ERR", "local end-to-end context operation error"},
	StatusLocProtErr:       {"LOC_PROT_ERR", "local protection error: the local key, range or access right does not cover the memory"},
	StatusWRFlushErr:       {"WR_FLUSH_ERR", "flushed: the queue pair was in the error state before this request ran"},
	StatusMWBindErr:        {"MW_BIND_ERR", "memory window bind error"},
	StatusBadRespErr:       {"BAD_RESP_ERR", "bad response: the peer answered with something impossible"},
	StatusLocAccessErr:     {"LOC_ACCESS_ERR", "local access error: a remote write or read violated the protection of local memory"},
	StatusRemInvReqErr:     {"REM_INV_REQ_ERR", "remote invalid request: the peer refused the message (too long, or the operation is not allowed)"},
	StatusRemAccessErr:     {"REM_ACCESS_ERR", "remote access error: the remote key, range or access right does not cover the memory"},
	StatusRemOpErr:         {"REM_OP_ERR", "remote operation error: the peer could not complete the request"},
	StatusRetryExcErr:      {"RETRY_EXC_ERR", "transport retries exceeded: the peer or the path to it is gone"},
	StatusRNRRetryExcErr:   {"RNR_RETRY_EXC_ERR", "receiver-not-ready retries exceeded: the peer posted no receive"},
	StatusLocRDDViolErr:    {"LOC_RDD_VIOL_ERR", "local reliable datagram domain violation"},
	StatusRemInvRDReqErr:   {"REM_INV_RD_REQ_ERR", "remote invalid reliable datagram request"},
	StatusRemAbortErr:      {"REM_ABORT_ERR", "remote aborted: the peer ended the operation"},
	StatusInvEECNErr:       {"INV_EECN_ERR", "invalid end-to-end context number"},
	StatusInvEECStateErr:   {"INV_EEC_STATE_ERR", "invalid end-to-end context state"},
	StatusFatalErr:         {"FATAL_ERR", "fatal error: the NIC or its driver failed"},
	StatusRespTimeoutErr:   {"RESP_TIMEOUT_ERR", "response timeout"},
	StatusGeneralErr:       {"GENERAL_ERR", "general error of the transport"},
	StatusTMErr:            {"TM_ERR", "tag matching error"},
	StatusTMRndvIncomplete: {"TM_RNDV_INCOMPLETE", "tag matching rendezvous incomplete"},
}

// String says the status in words.
func (s Status) String() string {
	if int(s) < len(statusText) {
		return statusText[s].words
	}
	return "unknown status " + strconv.FormatUint(uint64(s), 10)
}

// Name is the verbs name of the status: "RETRY_EXC_ERR".
func (s Status) Name() string {
	if int(s) < len(statusText) {
		return statusText[s].name
	}
	return "STATUS_" + strconv.FormatUint(uint64(s), 10)
}

// Error is the verbs name followed by the words.
func (s Status) Error() string { return s.Name() + ": " + s.String() }

// Err returns nil for success and the status itself otherwise.
func (s Status) Err() error {
	if s == StatusSuccess {
		return nil
	}
	return s
}
