package pmix

// proc is pmix_proc_t: a process of a job, or with rankWildcard the job.
type proc struct {
	nspace [256]byte // pmix_nspace_t: the name of the job
	rank   uint32    // pmix_rank_t
}

// value is pmix_value_t. The longest member of its union has three words.
type value struct {
	kind uint16 // pmix_data_type_t
	_    [6]byte
	data [3]uint64
}

// info is pmix_info_t: a key with a value.
type info struct {
	key   [512]byte // pmix_key_t
	flags uint32
	_     [4]byte
	value value
}

// A byte object, pmix_byte_object_t, is the first two words of value.data: address and size.

// Types of values.
const (
	kindBool       = 1
	kindString     = 3
	kindInt        = 6
	kindUint32     = 14
	kindByteObject = 27
)

// Statuses.
const (
	success          = 0
	errEntryNotFound = -17 // PMIX_ERR_PROC_ENTRY_NOT_FOUND
	errTimeout       = -24
	errNotFound      = -46
)

const (
	scopeGlobal  = 3             // for processes of this host and of others
	rankWildcard = 1<<32 - 1 - 1 // stands for the job as a whole
)

// Keys, and the types of their values.
const (
	jobSize   = "pmix.job.size"    // uint32
	localSize = "pmix.local.size"  // uint32: processes of the job on this host
	hostName  = "pmix.hname"       // string: of a process
	timeout   = "pmix.timeout"     // int: seconds that a call may take
	refresh   = "pmix.get.refresh" // bool: not a value that was cached
)
