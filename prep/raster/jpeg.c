#include "jpeg.h"

#include <setjmp.h>
#include <stdio.h> // for jpeglib.h

#include <jpeglib.h>

#include "smooth.h"

// All that libjpeg's callbacks need. The first member of each struct is the one
// that libjpeg knows.
typedef struct {
	struct jpeg_source_mgr pub;
	size_t unread; // bytes of the file behind those in the buffer
	size_t skip;   // bytes still to be passed over
} hg_source;

typedef struct {
	struct jpeg_error_mgr pub;
	jmp_buf fail; // status is its value; it is left only within hg_jpeg_read
} hg_error;

typedef struct {
	struct jpeg_progress_mgr pub;
	int max_scans;
} hg_progress;

static void on_error(j_common_ptr j) {
	longjmp(((hg_error *)j->err)->fail, HG_DAMAGED);
}

static void on_message(j_common_ptr j) {
	(void)j;
}

static void on_progress(j_common_ptr j) {
	if (((j_decompress_ptr)j)->input_scan_number > ((hg_progress *)j->progress)->max_scans)
		longjmp(((hg_error *)j->err)->fail, HG_TOO_MUCH);
}

static void nothing(j_decompress_ptr j) {
	(void)j;
}

// No more bytes at the moment: libjpeg goes back to where it can resume, and
// returns to hg_jpeg_read.
static boolean suspend(j_decompress_ptr j) {
	(void)j;
	return FALSE;
}

static void skip(j_decompress_ptr j, long bytes) {
	hg_source *s = (hg_source *)j->src;
	const size_t n = bytes > 0 ? (size_t)bytes : 0;
	const size_t now = n < s->pub.bytes_in_buffer ? n : s->pub.bytes_in_buffer;
	s->pub.next_input_byte += now;
	s->pub.bytes_in_buffer -= now;
	s->skip = n - now;
}

// feed makes the next bytes of the file readable; 0 at its end. The file lies in
// memory as a whole, so nothing is moved.
static int feed(j_decompress_ptr j) {
	enum { BLOCK = 65536 };
	hg_source *s = (hg_source *)j->src;
	do {
		const size_t n = s->unread < BLOCK ? s->unread : BLOCK;
		if (n == 0)
			return 0;
		s->unread -= n;
		s->pub.bytes_in_buffer += n;
		if (s->skip > 0)
			skip(j, (long)s->skip);
	} while (s->skip > 0);
	return 1;
}

// a * b / 255, rounded.
static inline int muldiv255(int a, int b) {
	const int t = a * b + 128;
	return ((t >> 8) + t) >> 8;
}

static void grey_to_rgb(uint8_t *rgb, const uint8_t *row, size_t width) {
	for (size_t x = 0; x < width; x++, rgb += 3)
		rgb[0] = rgb[1] = rgb[2] = row[x];
}

// The four inks are stored inverted, as Adobe does it: 255 is none.
static void cmyk_to_rgb(uint8_t *rgb, const uint8_t *row, size_t width) {
	for (size_t x = 0; x < width; x++, rgb += 3, row += 4) {
		const int white = row[3];
		for (int c = 0; c < 3; c++)
			rgb[c] = (uint8_t)(white - muldiv255(255 - row[c], white));
	}
}

static int is_frame(int marker) {
	return (marker >= 0xc0 && marker <= 0xc2) || marker == 0xc9 || marker == 0xca;
}

int hg_jpeg_read(const uint8_t *file, size_t size, size_t width, size_t height, int components, int max_scans,
		 uint8_t *dst) {
	struct jpeg_decompress_struct j = {0};
	hg_source source = {
		.pub = {.next_input_byte = file, .init_source = nothing, .fill_input_buffer = suspend, .skip_input_data = skip,
			.resync_to_restart = jpeg_resync_to_restart, .term_source = nothing},
		.unread = size,
	};
	hg_progress progress = {.pub = {.progress_monitor = on_progress}, .max_scans = max_scans};
	hg_error error;
	j.err = jpeg_std_error(&error.pub);
	error.pub.error_exit = on_error;
	error.pub.output_message = on_message;

	const int failed = setjmp(error.fail);
	if (failed) {
		jpeg_destroy_decompress(&j);
		return failed;
	}
	jpeg_create_decompress(&j);
	j.src = &source.pub;
	j.progress = &progress.pub;

	// A file may hold tables in a stream of their own before the picture's.
	int header, streams = 0;
	do {
		if (++streams > max_scans)
			longjmp(error.fail, HG_TOO_MUCH);
		while ((header = jpeg_read_header(&j, FALSE)) == JPEG_SUSPENDED)
			if (!feed(&j))
				on_error((j_common_ptr)&j);
	} while (header == JPEG_HEADER_TABLES_ONLY);
	if (j.image_width != width || j.image_height != height || j.num_components != components)
		on_error((j_common_ptr)&j);
	j.out_color_space = components == 1 ? JCS_GRAYSCALE : components == 3 ? JCS_RGB : JCS_CMYK;

	j.do_block_smoothing = FALSE; // hg_smooth does it
	while (!jpeg_start_decompress(&j))
		if (!feed(&j))
			on_error((j_common_ptr)&j);
	hg_smooth(&j);

	// The decoder's pool holds both rows; it is freed with the decoder. To a row
	// that is aligned libjpeg-turbo writes past the caches, and it is read at once.
	enum { UNALIGNED = 8 };
	uint8_t *row = UNALIGNED + (uint8_t *)j.mem->alloc_large((j_common_ptr)&j, JPOOL_IMAGE, UNALIGNED + width * (size_t)components);
	uint8_t *rgb = components == 3 ? row : j.mem->alloc_large((j_common_ptr)&j, JPOOL_IMAGE, 3 * width);
	for (size_t y = 0; y < height; y++) {
		while (jpeg_read_scanlines(&j, &row, 1) != 1)
			if (!feed(&j))
				on_error((j_common_ptr)&j);
		if (components == 1)
			grey_to_rgb(rgb, row, width);
		else if (components == 4)
			cmyk_to_rgb(rgb, row, width);
		hg_sink_row(dst, width, y, rgb, 3);
	}
	// What is left of the buffer may still hold an error; a missing end is none.
	// A second frame is one, also where it breaks off, which libjpeg-turbo sees
	// from version 3 on.
	if (!jpeg_finish_decompress(&j) && is_frame(j.unread_marker))
		on_error((j_common_ptr)&j);
	jpeg_destroy_decompress(&j);
	return HG_OK;
}
