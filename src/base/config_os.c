/* SPDX-License-Identifier: Apache-2.0 */
/* config_os.c - reads the configuration file. */
#include "base/config_os.h"
#include "base/os.h"

enum brg_status config_read_file(struct config *c, const char *path, struct err *e) {
    AUTO_BUF struct buf text = {0};
    TRY(os_read_file(path, CONFIG_FILE_BYTES_MAX, &text, e));
    return config_parse(c, path, text.data, text.bytes_count, e);
}
