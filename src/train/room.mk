# SPDX-License-Identifier: Apache-2.0
# dlopen is in libc since glibc 2.34; older systems want it by name.
LIBS_train = -ldl
FOLDERS_train = cpu
