package prep

import (
	"container/list"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"sync"
)

// CacheStats is what a cache did since it was made, and what it holds now.
type CacheStats struct {
	Hits, Misses   uint64
	Entries, Bytes int
}

// textKey stands for the text that a vector was sent as.
type textKey [16]byte

// vectorCache remembers prepared vectors by the text that they were sent as. It
// is bounded in entries and bytes; the least recently used entry goes first. A
// nil cache remembers nothing. It is safe for concurrent use.
//
// A caller chooses the texts, so no caller may be able to choose two with one
// key. The key is the text's AES-GCM authentication tag (NIST SP 800-38D) under
// a random key that belongs to this cache and never leaves it, like the tags:
// GHASH is a universal hash, and two texts of n bytes have the same tag with a
// probability of at most n/2^131, whoever chooses them. On processors with
// instructions for it it takes a quarter of SHA-256's time.
type vectorCache struct {
	mac                  cipher.AEAD
	nonce                []byte // a constant: the tags are shown to nobody
	maxEntries, maxBytes int

	mu      sync.Mutex
	entries map[textKey]*list.Element
	order   *list.List // of *cachedVector, the last used first
	stats   CacheStats
}

// cachedVector is immutable.
type cachedVector struct {
	key   textKey
	bytes []byte
}

// newVectorCache makes a cache, or none where a limit is zero.
func newVectorCache(maxEntries, maxBytes int) *vectorCache {
	if maxEntries <= 0 || maxBytes <= 0 {
		return nil
	}
	secret := make([]byte, 16)
	rand.Read(secret) // it never fails
	block, err := aes.NewCipher(secret)
	if err != nil {
		panic(err) // the key has the right size
	}
	mac, err := cipher.NewGCM(block)
	if err != nil {
		// Go in its strict FIPS 140 mode has no AES-GCM with a nonce of one's own.
		return nil
	}
	return &vectorCache{
		mac:        mac,
		nonce:      make([]byte, mac.NonceSize()),
		maxEntries: maxEntries,
		maxBytes:   maxBytes,
		entries:    map[textKey]*list.Element{},
		order:      list.New(),
	}
}

func (c *vectorCache) key(text []byte) textKey {
	if c == nil {
		return textKey{}
	}
	return textKey(c.mac.Seal(nil, c.nonce, nil, text))
}

// get is the vector of a text, nil if it is not there.
func (c *vectorCache) get(key textKey) []byte {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	element, ok := c.entries[key]
	if !ok {
		c.stats.Misses++
		return nil
	}
	c.stats.Hits++
	c.order.MoveToFront(element)
	return element.Value.(*cachedVector).bytes
}

// put remembers a vector, which nobody may write to from then on. Of two callers that prepared the same text
// at the same time, the second is passed over.
func (c *vectorCache) put(key textKey, vector []byte) {
	if c == nil || len(vector) > c.maxBytes {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.entries[key]; ok {
		return
	}
	c.entries[key] = c.order.PushFront(&cachedVector{key, vector})
	c.stats.Bytes += len(vector)
	for c.order.Len() > c.maxEntries || c.stats.Bytes > c.maxBytes {
		oldest := c.order.Remove(c.order.Back()).(*cachedVector)
		delete(c.entries, oldest.key)
		c.stats.Bytes -= len(oldest.bytes)
	}
}

func (c *vectorCache) snapshot() CacheStats {
	if c == nil {
		return CacheStats{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	stats := c.stats
	stats.Entries = c.order.Len()
	return stats
}
