// What the C decoders answer.
#ifndef HISTOGATE_STATUS_H
#define HISTOGATE_STATUS_H

enum {
	HG_OK = 0,
	HG_DAMAGED = 1,  // the file is truncated or contradicts itself
	HG_TOO_MUCH = 2, // more scans or frames than are taken
	HG_MEMORY = 3,   // the machine has no memory for it
};

#endif
