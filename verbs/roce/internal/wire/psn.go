package wire

// PSNMask is the largest packet sequence number, and the bits that one has. Message sequence
// numbers and queue-pair numbers are as wide.
const PSNMask = 1<<24 - 1

// PSNDiff is how far a is ahead of b, negative when it is behind: -2^23 to 2^23 - 1. It serves
// message sequence numbers as well.
func PSNDiff(a, b uint32) int { return int(int32((a-b)<<8) >> 8) }
