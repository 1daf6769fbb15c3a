/* SPDX-License-Identifier: Apache-2.0 */
/* predict.c - the predictor on a log of what happened, line by line, in the order of time:
 *
 *   ask ID ESTIMATE NODES LIMIT HOUR   (seconds; ESTIMATE -1: none, -2: refused)   prints ID and the 10, 50, 90 % quantiles
 *   started ID WAIT
 *   cancelled ID WAITED
 *
 * `new` forgets all. For bench/estimates/estimates. */
#include <stdio.h>
#include <string.h>

#include "place/predict.h"

enum { IDS = 4096 };

int main(void) {
    static struct predictor p;
    static struct wait_request asked[IDS];
    static bool known[IDS];
    char line[256], verb[16];
    predictor_init(&p, 3600);
    while (fgets(line, sizeof line, stdin) != NULL) {
        unsigned id = 0;
        double v[4] = {0};
        int n = sscanf(line, "%15s %u %lf %lf %lf %lf", verb, &id, &v[0], &v[1], &v[2], &v[3]);
        if (n == 1 && strcmp(verb, "new") == 0) {
            predictor_init(&p, 3600);
            memset(known, 0, sizeof known);
        } else if (n == 6 && id < IDS && strcmp(verb, "ask") == 0) {
            asked[id] = (struct wait_request){.estimate_s = v[0] < 0 ? -1 : v[0],
                                              .refused = v[0] < -1,
                                              .nodes = v[1],
                                              .limit_s = v[2],
                                              .queued = -1,
                                              .hour = v[3]};
            known[id] = true;
            printf("%u %.3f %.3f %.3f\n", id, predictor_quantile(&p, &asked[id], 0.1),
                   predictor_quantile(&p, &asked[id], 0.5),
                   predictor_quantile(&p, &asked[id], 0.9));
        } else if (n == 3 && id < IDS && known[id] && strcmp(verb, "started") == 0) {
            predictor_started(&p, &asked[id], v[0]);
        } else if (n == 3 && id < IDS && known[id] && strcmp(verb, "cancelled") == 0) {
            predictor_cancelled(&p, &asked[id], v[0]);
        } else {
            fprintf(stderr, "predict: not understood: %s", line);
            return 1;
        }
    }
    return 0;
}
