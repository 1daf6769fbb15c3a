/* SPDX-License-Identifier: Apache-2.0 */
/* project_svg.h - the picture of a projection. */
#ifndef CLI_PROJECT_SVG_H
#define CLI_PROJECT_SVG_H

#include "base/base.h"

/* One rising step curve a series: the share of its n times (sorted, hours) that lie below x. */
void project_svg(const char *const *names, const double *const *times, size_t series, size_t n,
                 struct buf *out);

#endif
