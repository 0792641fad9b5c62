#define JPEG_INTERNALS
#include "smooth.h"

#include <stdint.h>

enum { KERNELS = 10, SIDE = 5, ROUGH = 9 /* coefficients that are estimated, besides DC */ };

// One estimate: the coefficient, in natural order, and the weights of the DC
// values of the 5 x 5 blocks around it, in 256ths of DC's quantum over the
// coefficient's. The numbers are libjpeg-turbo's (jdcoefct.c, BSD licence).
typedef struct {
	int at;
	int16_t weight[SIDE * SIDE];
} hg_kernel;

// For a component of which no AC coefficient is known; the last one is DC's own.
static const hg_kernel from_dc[KERNELS] = {
	{1, {-1, -1, 0, 1, 1, -3, 13, 0, -13, 3, -3, 38, 0, -38, 3, -3, 13, 0, -13, 3, -1, -1, 0, 1, 1}},
	{8, {-1, -3, -3, -3, -1, -1, 13, 38, 13, -1, 0, 0, 0, 0, 0, 1, -13, -38, -13, 1, 1, 3, 3, 3, 1}},
	{16, {0, 0, 1, 0, 0, 0, 2, 7, 2, 0, 0, -5, -14, -5, 0, 0, 2, 7, 2, 0, 0, 0, 1, 0, 0}},
	{9, {-1, 0, 0, 0, 1, 0, 9, 0, -9, 0, 0, 0, 0, 0, 0, 0, -9, 0, 9, 0, 1, 0, 0, 0, -1}},
	{2, {0, 0, 0, 0, 0, 0, 2, -5, 2, 0, 1, 7, -14, 7, 1, 0, 2, -5, 2, 0, 0, 0, 0, 0, 0}},
	{3, {0, 0, 0, 0, 0, 0, 1, 0, -1, 0, 0, 2, 0, -2, 0, 0, 1, 0, -1, 0, 0, 0, 0, 0, 0}},
	{10, {0, 0, 0, 0, 0, 0, 1, -3, 1, 0, 0, 0, 0, 0, 0, 0, -1, 3, -1, 0, 0, 0, 0, 0, 0}},
	{17, {0, 0, 0, 0, 0, 0, 1, 0, -1, 0, 0, -3, 0, 3, 0, 0, 1, 0, -1, 0, 0, 0, 0, 0, 0}},
	{24, {0, 0, 0, 0, 0, 0, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, -1, -2, -1, 0, 0, 0, 0, 0, 0}},
	{0, {-2, -6, -8, -6, -2, -6, 6, 42, 6, -6, -8, 42, 152, 42, -8, -6, 6, 42, 6, -6, -2, -6, -8, -6, -2}},
};

// For all others.
static const hg_kernel from_some[] = {
	{1, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -7, 50, 0, -50, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
	{8, {0, 0, -7, 0, 0, 0, 0, 50, 0, 0, 0, 0, 0, 0, 0, 0, 0, -50, 0, 0, 0, 0, 7, 0, 0}},
	{16, {0, 0, -1, 0, 0, 0, 0, 13, 0, 0, 0, 0, -24, 0, 0, 0, 0, 13, 0, 0, 0, 0, -1, 0, 0}},
	{9, {0, -1, 0, 1, 0, -1, 10, 0, -10, 1, 0, 0, 0, 0, 0, 1, -10, 0, 10, -1, 0, 1, 0, -1, 0}},
	{2, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, 13, -24, 13, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
};

// useful says whether anything is to be estimated, and can be.
static int useful(j_decompress_ptr j) {
	int any = 0;
	if (!j->progressive_mode || !j->coef_bits)
		return 0;
	for (int c = 0; c < j->num_components; c++) {
		const JQUANT_TBL *q = j->comp_info[c].quant_table;
		if (!q || j->coef_bits[c][0] < 0)
			return 0;
		for (int k = 0; k < KERNELS; k++)
			if (q->quantval[from_dc[k].at] == 0)
				return 0;
		for (int k = 1; k <= ROUGH; k++)
			any |= j->coef_bits[c][k] != 0;
	}
	return any;
}

// estimate is the rounded quotient, of at most known bits if some are known.
static int estimate(long sum, long quantum, int known) {
	long v = ((quantum << 7) + (sum < 0 ? -sum : sum)) / (quantum << 8);
	if (known > 0 && v >= 1L << known)
		v = (1L << known) - 1;
	return (int)(sum < 0 ? -v : v);
}

// smooth_block changes one block; dc are the DC values of the rows around it and
// column those of its columns.
static void smooth_block(JCOEF *block, const JCOEF *const dc[SIDE], const size_t column[SIDE], const JQUANT_TBL *q,
			 const int *bits) {
	int all = 1;
	for (int k = 1; k <= ROUGH; k++)
		all &= bits[k] == -1;
	const hg_kernel *kernels = all ? from_dc : from_some;
	const int count = all ? KERNELS : (int)(sizeof from_some / sizeof *from_some);
	for (int k = 0; k < count; k++) {
		const int at = kernels[k].at;
		// coef_bits is indexed by the order of the scans, and so are the kernels:
		// the first nine coefficients, of which the tables leave out none.
		const int known = at == 0 ? 0 : bits[k + 1];
		if (at != 0 && (known == 0 || block[at] != 0))
			continue;
		int sum = 0;
		for (int y = 0; y < SIDE; y++)
			for (int x = 0; x < SIDE; x++)
				sum += kernels[k].weight[SIDE * y + x] * dc[y][column[x]];
		block[at] = (JCOEF)estimate((long)q->quantval[0] * sum, q->quantval[at], known);
	}
}

static void smooth_component(j_decompress_ptr j, int c) {
	const jpeg_component_info *info = &j->comp_info[c];
	const size_t cols = info->width_in_blocks, per_mcu = (size_t)info->v_samp_factor, mcus = j->total_iMCU_rows;
	const size_t all_rows = per_mcu * mcus;
	j_common_ptr common = (j_common_ptr)j;
	jvirt_barray_ptr blocks = j->coef->coef_arrays[c];
	JCOEF *dc = j->mem->alloc_large(common, JPOOL_IMAGE, all_rows * cols * sizeof *dc);
	for (size_t y = 0; y < all_rows; y++) {
		JBLOCKROW row = j->mem->access_virt_barray(common, blocks, (JDIMENSION)y, 1, FALSE)[0];
		for (size_t x = 0; x < cols; x++)
			dc[y * cols + x] = row[x][0];
	}
	// Where the last scan broke off, what was known before it counts. The first
	// of these bits is not used.
	int before[ROUGH + 1];
	for (int k = 0; k <= ROUGH; k++)
		before[k] = j->input_scan_number > 1 ? j->coef_bits[c + j->num_components][k] : -1;

	for (size_t mcu = 0; mcu < mcus; mcu++) {
		size_t rows = per_mcu;
		if (mcu == mcus - 1 && info->height_in_blocks % per_mcu != 0)
			rows = info->height_in_blocks % per_mcu;
		for (size_t r = 0; r < rows; r++) {
			const size_t y = mcu * per_mcu + r;
			// The row's number as version 3 counts it, which is another one in a
			// last MCU that is not full.
			const size_t number = mcu * rows + r, last = mcus * rows - 1;
			const JCOEF *here = dc + y * cols;
			const JCOEF *above = number > 0 ? here - cols : here, *below = number < last ? here + cols : here;
			const JCOEF *const around[SIDE] = {
				number > 1 ? here - 2 * cols : above, above, here, below, number + 1 < last ? here + 2 * cols : below,
			};
			JBLOCKROW row = j->mem->access_virt_barray(common, blocks, (JDIMENSION)y, 1, TRUE)[0];
			for (size_t x = 0; x < cols; x++) {
				const size_t right = cols - 1, column[SIDE] = {
					x > 1 ? x - 2 : 0, x > 0 ? x - 1 : 0, x, x < right ? x + 1 : right, x + 1 < right ? x + 2 : right,
				};
				smooth_block(row[x], around, column, info->quant_table,
					     mcu > j->master->last_good_iMCU_row ? before : j->coef_bits[c]);
			}
		}
	}
}

void hg_smooth(j_decompress_ptr j) {
	if (!useful(j))
		return;
	for (int c = 0; c < j->num_components; c++)
		smooth_component(j, c);
}
