/* SPDX-License-Identifier: Apache-2.0 */
/* project_svg.c - see project_svg.h. */
#include "cli/project_svg.h"

#include <math.h>

enum { WIDTH = 900, HEIGHT = 460, LEFT = 64, RIGHT = 160, TOP = 44, BOTTOM = 52, POINTS = 200 };

static const char *const colours[] = {"#b2182b", "#ef8a62", "#998ec3", "#67a9cf", "#1b7837"};

/* A step of 1, 2 or 5 times a power of ten that cuts span into at most `count` parts. */
static double step_of(double span, double count) {
    double step = pow(10.0, floor(log10(span / count)));
    static const double factors[] = {1, 2, 5, 10};
    for (size_t i = 0; i < ARRAY_COUNT(factors); i++)
        if (span / (step * factors[i]) <= count) return step * factors[i];
    return step * 10;
}

static void axes(double most, struct buf *out) {
    double wide = WIDTH - LEFT - RIGHT, high = HEIGHT - TOP - BOTTOM, step = step_of(most, 8);
    for (double x = 0; x <= most; x += step) {
        double at = LEFT + wide * x / most;
        buf_printf(out, "<path d=\"M%.1f %d V%d\" stroke=\"#ddd\"/>\n", at, TOP, HEIGHT - BOTTOM);
        buf_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n", at,
                   HEIGHT - BOTTOM + 18, x);
    }
    for (int i = 0; i <= 4; i++) {
        double y = HEIGHT - BOTTOM - high * i / 4;
        buf_printf(out, "<path d=\"M%d %.1f H%d\" stroke=\"#ddd\"/>\n", LEFT, y, WIDTH - RIGHT);
        buf_printf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n", LEFT - 8,
                   y + 4, 25 * i);
    }
    buf_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">hours to the target</text>\n",
               LEFT + wide / 2, HEIGHT - 12);
}

void project_svg(const char *const *names, const double *const *times, size_t series, size_t n,
                 struct buf *out) {
    double most = 0, wide = WIDTH - LEFT - RIGHT, high = HEIGHT - TOP - BOTTOM;
    for (size_t k = 0; k < series; k++) most = fmax(most, times[k][n - 1 - n / 50]);
    most = fmax(most * 1.02, 1e-3);
    buf_printf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
        "font-family=\"sans-serif\" font-size=\"13\">\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
        "<text x=\"%d\" y=\"24\" font-size=\"15\">Share of %zu drawn worlds in which the run is "
        "done</text>\n",
        WIDTH, HEIGHT, LEFT, n);
    axes(most, out);
    for (size_t k = 0; k < series; k++) {
        const char *colour = colours[k % ARRAY_COUNT(colours)];
        buf_printf(out, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\" d=\"M%d %d", colour,
                   LEFT, HEIGHT - BOTTOM);
        for (size_t i = 1; i <= POINTS; i++) {
            size_t rank = (n * i + POINTS - 1) / POINTS;
            double x = fmin(times[k][rank - 1], most);
            buf_printf(out, " L%.1f %.1f", LEFT + wide * x / most,
                       HEIGHT - BOTTOM - high * (double)rank / (double)n);
        }
        buf_printf(out, "\"/>\n<text x=\"%d\" y=\"%zu\" fill=\"%s\">%s</text>\n",
                   WIDTH - RIGHT + 12, (size_t)TOP + 16 + 20 * k, colour, names[k]);
    }
    buf_printf(out, "</svg>\n");
}
