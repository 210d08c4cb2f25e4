/* What is said: a figure as a line of a table or of JSON. */
#include "bench.h"

#include <stdio.h>

static void json_text(const char *key, const char *text)
{
    printf(", \"%s\": \"", key);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        putchar((unsigned char)*text < ' ' ? ' ' : *text);
    }
    putchar('"');
}

static const char *verdict(const bench_figure *f)
{
    if (!f->budget || f->void_run)
        return NULL;
    bool met =
        f->at_least ? f->ratio.middle >= f->budget : f->ratio.middle <= f->budget;
    return met ? "true" : "false";
}

static void print_json(const bench_figure *f)
{
    const char *ok = verdict(f);
    printf("{\"part\": \"%s\"", f->part);
    json_text("name", f->name);
    printf(", \"value\": %.5g", f->value);
    json_text("unit", f->unit);
    if (f->reference_what) {
        printf(", \"reference\": \"%.3g %s\", \"reference_value\": %.5g", f->reference,
               f->reference_what, f->reference);
        printf(", \"ratio\": %.4g, \"ratio_low\": %.4g, \"ratio_high\": %.4g",
               f->ratio.middle, f->ratio.low, f->ratio.high);
    } else {
        printf(", \"reference\": null, \"ratio\": null");
    }
    if (f->budget)
        printf(", \"budget\": \"%s %.3g\"", f->at_least ? ">=" : "<=", f->budget);
    else
        printf(", \"budget\": null");
    printf(", \"ok\": %s", ok ? ok : "null");
    json_text("note", f->note ? f->note : "");
    printf("}\n");
}

static void print_line(const bench_figure *f)
{
    const char *ok = verdict(f);
    char budget[32] = "";
    if (f->budget)
        snprintf(budget, sizeof(budget), "%s %.3g",
                 f->at_least ? ">=" : "<=", f->budget);
    printf("%-8s %-42s %9.4g %-4s", f->part, f->name, f->value, f->unit);
    if (f->reference_what)
        printf(" %9.4g %-16s %6.3f (%.3f-%.3f) %-8s %-6s", f->reference,
               f->reference_what, f->ratio.middle, f->ratio.low, f->ratio.high, budget,
               !ok            ? ""
               : ok[0] == 't' ? "ok"
                              : "MISSED");
    printf(" %s\n", f->note ? f->note : "");
}

void bench_print(const bench_context *ctx, const bench_figure *figure)
{
    if (ctx->json)
        print_json(figure);
    else
        print_line(figure);
    fflush(stdout);
}

void bench_print_skipped(const bench_context *ctx, const char *part, const char *name,
                         const char *why)
{
    if (!ctx->json) {
        printf("%-8s %-42s not measured: %s\n", part, name, why);
    } else {
        printf("{\"part\": \"%s\"", part);
        json_text("name", name);
        printf(
            ", \"value\": null, \"unit\": \"\", \"reference\": null, \"ratio\": null, "
            "\"budget\": null, \"ok\": null");
        json_text("note", why);
        printf("}\n");
    }
    fflush(stdout);
}
