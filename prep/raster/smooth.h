// Block smoothing of a progressive JPEG that lacks scans.
#ifndef HISTOGATE_SMOOTH_H
#define HISTOGATE_SMOOTH_H

#include <stdio.h> // for jpeglib.h

#include <jpeglib.h>

// hg_smooth estimates the low AC coefficients that no scan has given, or not to
// the last bit, from the DC values around each block, in place. It stands in
// for libjpeg-turbo's own smoothing, which Debian 12 has in version 2.1.5: that
// takes the wrong rows at two places where a component has more than one row of
// blocks to an MCU, which version 3 corrected, and Pillow has version 3.
//
// To be called once jpeg_start_decompress has read all scans, with
// do_block_smoothing off. It does nothing where version 3 would do nothing.
void hg_smooth(j_decompress_ptr j);

#endif
