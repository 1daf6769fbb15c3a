/* SPDX-License-Identifier: Apache-2.0 */
/* page.h - private to the hub: the dashboard, one HTML file inside the program. Pure.
 *
 * Inside, and not read from a share directory: the hub is one file that can be copied to any small machine, and page
 * and hub can never be of different versions. `make web` makes the file from web/ (that wants npm); a program that
 * was built without it carries src/hub/page_none.html instead. */
#ifndef HUB_PAGE_H
#define HUB_PAGE_H

#include "base/base.h"

const char *page_html(size_t *out_bytes);

#endif
