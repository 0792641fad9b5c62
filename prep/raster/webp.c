#include "webp.h"

#include <stdlib.h>

#include <webp/decode.h>
#include <webp/demux.h>

static int read_frame(const WebPIterator *frame, size_t width, size_t height, uint8_t *dst) {
	const size_t stride = 4 * width, w = (size_t)frame->width, h = (size_t)frame->height;
	const size_t x = (size_t)frame->x_offset, y = (size_t)frame->y_offset;
	WebPDecoderConfig config;
	if (x + w > width || y + h > height || !WebPInitDecoderConfig(&config))
		return HG_DAMAGED;
	uint8_t *canvas = calloc(height, stride);
	if (!canvas)
		return HG_MEMORY;
	config.output.colorspace = MODE_RGBA;
	config.output.is_external_memory = 1;
	config.output.u.RGBA.rgba = canvas + stride * y + 4 * x;
	config.output.u.RGBA.stride = (int)stride;
	config.output.u.RGBA.size = stride * h - 4 * x;
	const VP8StatusCode status = WebPDecode(frame->fragment.bytes, frame->fragment.size, &config);
	if (status == VP8_STATUS_OK)
		for (size_t row = 0; row < height; row++)
			hg_sink_row(dst, width, row, canvas + stride * row, 4);
	free(canvas);
	if (status == VP8_STATUS_OUT_OF_MEMORY)
		return HG_MEMORY;
	return status == VP8_STATUS_OK ? HG_OK : HG_DAMAGED;
}

int hg_webp_read(const uint8_t *file, size_t size, size_t width, size_t height, int max_frames, uint8_t *dst) {
	const WebPData data = {.bytes = file, .size = size};
	// The demuxer takes headers that the decoder does not.
	WebPBitstreamFeatures features;
	if (WebPGetFeatures(file, size, &features) != VP8_STATUS_OK)
		return HG_DAMAGED;
	WebPDemuxer *demuxer = WebPDemux(&data);
	if (!demuxer)
		return HG_DAMAGED;
	WebPIterator frame = {0};
	int status = HG_DAMAGED;
	if (WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_WIDTH) != width || WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_HEIGHT) != height)
		status = HG_DAMAGED;
	else if (WebPDemuxGetI(demuxer, WEBP_FF_FRAME_COUNT) > (uint32_t)max_frames)
		status = HG_TOO_MUCH;
	else if (WebPDemuxGetFrame(demuxer, 1, &frame))
		status = read_frame(&frame, width, height, dst);
	WebPDemuxReleaseIterator(&frame);
	WebPDemuxDelete(demuxer);
	return status;
}
