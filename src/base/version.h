/* SPDX-License-Identifier: Apache-2.0 */
/* version.h - of program, library and packages, as semver.org counts; the Makefile reads this line. */
#ifndef BASE_VERSION_H
#define BASE_VERSION_H

#define BERINGIA_VERSION "0.3.0"

#endif
