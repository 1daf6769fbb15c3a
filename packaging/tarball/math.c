/* SPDX-License-Identifier: Apache-2.0 */
/* math.c - glibc 2.29 gave these functions new names of version (they set no errno by way of matherr any more), and a
 * program that is linked with a later one asks for those. The older ones are still in every glibc and compute the same.
 * The linker's --wrap leads here, for our objects and for those of the libraries alike. */
double older_exp(double x);
double older_exp2(double x);
double older_log(double x);
double older_log2(double x);
double older_pow(double x, double y);
__asm__(".symver older_exp,exp@GLIBC_2.2.5\n"
        ".symver older_exp2,exp2@GLIBC_2.2.5\n"
        ".symver older_log,log@GLIBC_2.2.5\n"
        ".symver older_log2,log2@GLIBC_2.2.5\n"
        ".symver older_pow,pow@GLIBC_2.2.5\n");

double __wrap_exp(double x);
double __wrap_exp2(double x);
double __wrap_log(double x);
double __wrap_log2(double x);
double __wrap_pow(double x, double y);

double __wrap_exp(double x) {
    return older_exp(x);
}
double __wrap_exp2(double x) {
    return older_exp2(x);
}
double __wrap_log(double x) {
    return older_log(x);
}
double __wrap_log2(double x) {
    return older_log2(x);
}
double __wrap_pow(double x, double y) {
    return older_pow(x, y);
}
