// Package nic holds what every NIC made of software needs and what does not depend on how its work
// requests are executed: protection domains, memory regions and their keys, completion queues, the
// queues of queue pairs, their states and attributes, and every check of the contract of package
// verbs. What it refuses, and in which words, is the same for all providers that build on it.
package nic
