/* SPDX-License-Identifier: Apache-2.0 */
/* amx_os.c - Linux gives a process the large registers of AMX when it asks for them (since 5.16). */
#include <sys/syscall.h>
#include <unistd.h>

#include "train/cpu/kernels.h"

bool amx_permitted(void) {
#if defined(__x86_64__)
    enum { REQUEST = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}
