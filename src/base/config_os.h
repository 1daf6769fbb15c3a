/* SPDX-License-Identifier: Apache-2.0 */
/* config_os.h - the part of config that touches files; for whom base/os.h is for. */
#ifndef BASE_CONFIG_OS_H
#define BASE_CONFIG_OS_H

#include "base/config.h"

/* config_parse of a whole file; E_MISSING, E_IO or E_CONFIG. */
enum brg_status config_read_file(struct config *c, const char *path, struct err *e) MUST_USE;

#endif
