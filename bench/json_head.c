/* What a JSON document of figures begins with. */
#include "json_head.h"

#include <bucketpool/status.h>

#include <string.h>
#include <unistd.h>

void bench_print_string(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text != 0; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', file);
        if ((unsigned char)*text >= ' ')
            fputc(*text, file);
    }
    fputc('"', file);
}

static void print_cpu(FILE *file)
{
    char line[256], model[256] = "unknown";
    FILE *info = fopen("/proc/cpuinfo", "r");
    while (info != NULL && fgets(line, sizeof line, info) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL)
            continue;
        snprintf(model, sizeof model, "%s", colon + 1 + strspn(colon + 1, " "));
        model[strcspn(model, "\n")] = 0;
        break;
    }
    if (info != NULL)
        fclose(info);
    bench_print_string(file, model);
}

void bench_print_head(FILE *file, const char *date)
{
    fprintf(file, "{\n  \"format\": \"bucketpool.bench/1\",\n  \"version\": ");
    bench_print_string(file, bp_version());
    if (date != NULL) {
        fprintf(file, ",\n  \"date\": ");
        bench_print_string(file, date);
    }
    fprintf(file, ",\n  \"compiler\": ");
    bench_print_string(file, __VERSION__);
    fprintf(file, ",\n  \"machine\": {\"cpu\": ");
    print_cpu(file);
    fprintf(file, ", \"cores\": %ld}", sysconf(_SC_NPROCESSORS_ONLN));
}
