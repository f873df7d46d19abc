/* The canvas of all pictures: text, byte sizes, colours, and output as SVG, PNG or PDF. */
#include "pictures/canvas.h"

#include <cairo-pdf.h>
#include <cairo-svg.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/text.h"

/* ---- text and colours -------------------------------------------------------------------------------------------- */

#define LONGEST_TEXT 512

void picture_colour(cairo_t *cr, uint32_t colour, double alpha)
{
    cairo_set_source_rgba(cr, (colour >> 16) / 255.0, (colour >> 8 & 255) / 255.0, (colour & 255) / 255.0, alpha);
}

void picture_line(cairo_t *cr, double x1, double y1, double x2, double y2, double width)
{
    cairo_set_line_width(cr, width);
    cairo_move_to(cr, x1, y1);
    cairo_line_to(cr, x2, y2);
    cairo_stroke(cr);
}

void picture_fill(cairo_t *cr, uint32_t colour, double alpha, double x, double y, double width, double height)
{
    picture_colour(cr, colour, alpha);
    cairo_rectangle(cr, x, y, width, height);
    cairo_fill(cr);
}

static void clean(const char *text, char cleaned[LONGEST_TEXT])
{
    size_t at = 0;
    while (*text != '\0' && at + 5 < LONGEST_TEXT) {
        size_t bytes = bp_printable_bytes((const unsigned char *)text);
        if (bytes == 0) {
            cleaned[at++] = '?';
            text++;
            continue;
        }
        memcpy(cleaned + at, text, bytes);
        at += bytes;
        text += bytes;
    }
    cleaned[at] = '\0';
}

static double advance(cairo_t *cr, const picture_style *style, const char *cleaned)
{
    cairo_text_extents_t extents = {0};
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           style->bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr, style->size);
    cairo_text_extents(cr, cleaned, &extents);
    return extents.x_advance;
}

double picture_text_width(cairo_t *cr, const picture_style *style, const char *text)
{
    char cleaned[LONGEST_TEXT];
    clean(text, cleaned);
    return advance(cr, style, cleaned);
}

void picture_text_tail(cairo_t *cr, const picture_style *style, double x, double y, double room, const char *text)
{
    char cleaned[LONGEST_TEXT], shown[LONGEST_TEXT + 4];
    size_t length = strlen(text);
    text += length >= LONGEST_TEXT - 5 ? length - (LONGEST_TEXT - 6) : 0;
    clean(text, cleaned);
    const char *from = cleaned;
    memcpy(shown, cleaned, strlen(cleaned) + 1);
    while (advance(cr, style, shown) > room && *from != '\0') {
        do
            from++;
        while (((unsigned char)*from & 0xc0) == 0x80);
        snprintf(shown, sizeof shown, "\u2026%s", from);
    }
    picture_text(cr, style, x, y, 0, 0, shown);
}

void picture_text(cairo_t *cr, const picture_style *style, double x, double y, double anchor, double room,
                  const char *text)
{
    char cleaned[LONGEST_TEXT + 4];
    clean(text, cleaned);
    size_t length = strlen(cleaned);
    double width = advance(cr, style, cleaned);
    while (room > 0 && width > room && length > 0) {
        do
            length--;
        while (length > 0 && ((unsigned char)cleaned[length] & 0xc0) == 0x80);
        memcpy(cleaned + length, "\u2026", sizeof "\u2026");
        width = advance(cr, style, cleaned);
    }
    picture_colour(cr, style->colour, 1);
    cairo_move_to(cr, x - anchor * width, y);
    cairo_show_text(cr, cleaned);
    cairo_new_path(cr);
}

void picture_label(cairo_t *cr, const picture_style *style, double x, double y, double anchor, const char *text)
{
    double width = picture_text_width(cr, style, text) + 8;
    picture_fill(cr, 0xffffff, 0.85, x - anchor * width, y - 11, width, 14);
    picture_text(cr, style, x + 4 - 8 * anchor, y, anchor, 0, text);
}

void picture_dash(cairo_t *cr, bool dashed)
{
    const double dashes[] = {7, 4};
    cairo_set_dash(cr, dashes, dashed ? 2 : 0, 0);
}

void picture_image(cairo_t *cr, cairo_surface_t *image, double x, double y)
{
    cairo_save(cr);
    cairo_translate(cr, x, y);
    cairo_scale(cr, 1.0 / PICTURE_IMAGE_SCALE, 1.0 / PICTURE_IMAGE_SCALE);
    cairo_set_source_surface(cr, image, 0, 0);
    cairo_paint(cr);
    cairo_restore(cr);
    cairo_surface_destroy(image);
}

const char *picture_byte_unit(uint64_t bytes, double *unit)
{
    static const char *const names[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t i = sizeof names / sizeof *names - 1;
    while (i > 0 && bytes < 1ull << 10 * i)
        i--;
    *unit = (double)(1ull << 10 * i);
    return names[i];
}

void picture_format_bytes(uint64_t bytes, char text[PICTURE_BYTES_CHARS])
{
    /* in the unit of `like` bytes */
    double unit;
    const char *name = picture_byte_unit(bytes, &unit);
    double value = (double)bytes / unit;
    int decimals = unit == 1 || bytes == 0 ? 0 : value < 10 ? 3 : value < 100 ? 2 : 1;
    snprintf(text, PICTURE_BYTES_CHARS, "%.*f %s", decimals, value, name);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

enum { PNG_SCALE = 2, LONGEST_SECONDS = 300 };

static _Thread_local char error_text[512];

__attribute__((format(printf, 1, 2))) static const char *fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error_text, sizeof error_text, format, arguments);
    va_end(arguments);
    return error_text;
}

typedef enum format { FORMAT_NONE, FORMAT_SVG, FORMAT_PNG, FORMAT_PDF } format;

static format format_of(const char *path)
{
    const char *ending = strrchr(path, '.');
    if (ending == NULL || strchr(ending, '/') != NULL)
        return FORMAT_NONE;
    return strcasecmp(ending, ".svg") == 0   ? FORMAT_SVG
           : strcasecmp(ending, ".png") == 0 ? FORMAT_PNG
           : strcasecmp(ending, ".pdf") == 0 ? FORMAT_PDF
                                             : FORMAT_NONE;
}

enum { END_BYTES = 8 };

/* Destination of a surface's output, and its last bytes. */
typedef struct sink {
    FILE *file;
    char end[END_BYTES];
} sink;

static cairo_status_t write_bytes(void *user, const unsigned char *data, unsigned bytes)
{
    sink *s = user;
    size_t kept = bytes < END_BYTES ? END_BYTES - bytes : 0;
    memmove(s->end, s->end + END_BYTES - kept, kept);
    memcpy(s->end + kept, data + bytes - (END_BYTES - kept), END_BYTES - kept);
    return fwrite(data, 1, bytes, s->file) == bytes ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

/* cairo does not report write errors at the end of a document. */
static bool is_whole(format f, const sink *s)
{
    const char *end = f == FORMAT_SVG ? "</svg>\n" : f == FORMAT_PDF ? "%%EOF\n" : "IEND\xae\x42\x60\x82";
    return memcmp(s->end + END_BYTES - strlen(end), end, strlen(end)) == 0;
}

static cairo_surface_t *new_surface(const picture_page *p, format f, sink *to)
{
    if (f == FORMAT_PNG)
        return cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)ceil(p->width * PNG_SCALE),
                                          (int)ceil(p->height * PNG_SCALE));
    if (f == FORMAT_SVG)
        return cairo_svg_surface_create_for_stream(write_bytes, to, p->width, p->height);
    cairo_surface_t *surface = cairo_pdf_surface_create_for_stream(write_bytes, to, p->width, p->height);
    cairo_pdf_surface_set_metadata(surface, CAIRO_PDF_METADATA_CREATE_DATE, ""); /* the default is the current time */
    return surface;
}

/* Inverts lightness under prefers-color-scheme: dark. Viewers without style sheets show the page on white. */
static const char dark_style[] = "\n<style>@media (prefers-color-scheme: dark) { :root { filter: invert(0.92) "
                                 "hue-rotate(180deg); } }</style>";

/* cairo cannot add style sheets, so the text is inserted after the opening tag. */
static bool write_svg(const char *text, size_t bytes, FILE *file)
{
    const char *tag = bytes > 0 ? strstr(text, "<svg") : NULL, *end = tag != NULL ? strchr(tag, '>') : NULL;
    size_t head = end != NULL ? (size_t)(end - text) + 1 : 0;
    return fwrite(text, 1, head, file) == head && (head == 0 || fputs(dark_style, file) >= 0) &&
           fwrite(text + head, 1, bytes - head, file) == bytes - head;
}

static const char *draw_on(const picture_page *p, format f, FILE *file)
{
    sink to = {.file = file};
    cairo_surface_t *surface = new_surface(p, f, &to);
    cairo_t *cr = cairo_create(surface);
    if (f == FORMAT_PNG)
        cairo_scale(cr, PNG_SCALE, PNG_SCALE);
    cairo_font_options_t *options = cairo_font_options_create();
    cairo_font_options_set_hint_style(options, CAIRO_HINT_STYLE_NONE);
    cairo_font_options_set_hint_metrics(options, CAIRO_HINT_METRICS_OFF);
    cairo_set_font_options(cr, options);
    cairo_font_options_destroy(options);
    picture_colour(cr, 0xffffff, 1);
    cairo_paint(cr);
    p->draw(cr, p->user);
    cairo_status_t status = cairo_status(cr);
    cairo_destroy(cr);
    if (status == CAIRO_STATUS_SUCCESS && f == FORMAT_PNG)
        status = cairo_surface_write_to_png_stream(surface, write_bytes, &to);
    cairo_surface_finish(surface);
    if (status == CAIRO_STATUS_SUCCESS)
        status = cairo_surface_status(surface);
    cairo_surface_destroy(surface);
    if (status == CAIRO_STATUS_WRITE_ERROR || ferror(file))
        return strerror(errno);
    if (status == CAIRO_STATUS_SUCCESS && !is_whole(f, &to))
        status = CAIRO_STATUS_NO_MEMORY;
    return status == CAIRO_STATUS_SUCCESS ? NULL : cairo_status_to_string(status);
}

static const char *draw_to(const picture_page *p, format f, FILE *file)
{
    char *text = NULL;
    size_t bytes = 0;
    if (f != FORMAT_SVG)
        return draw_on(p, f, file);
    FILE *memory = open_memstream(&text, &bytes);
    if (memory == NULL)
        return "out of memory while drawing";
    const char *reason = draw_on(p, f, memory);
    if (fclose(memory) != 0 && reason == NULL)
        reason = "out of memory while drawing";
    if (reason == NULL && !write_svg(text, bytes, file))
        reason = strerror(errno);
    free(text);
    return reason;
}

/* Draws in a child process: when memory runs out, fontconfig crashes or deadlocks. */
static const char *draw_apart(const picture_page *p, format f, FILE *file)
{
    static char text[256];
    int ends[2], status = 0;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return strerror(errno);
    pid_t child = fork();
    if (child == 0) {
        alarm(LONGEST_SECONDS);
        const char *reason = draw_to(p, f, file);
        if (reason == NULL && fflush(file) != 0)
            reason = strerror(errno);
        bool told = reason == NULL || write(ends[1], reason, strlen(reason)) >= 0;
        _exit(reason == NULL && told ? 0 : 1);
    }
    int error = errno;
    close(ends[1]);
    ssize_t told = child > 0 ? read(ends[0], text, sizeof text - 1) : 0;
    close(ends[0]);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (child < 0)
        return strerror(error);
    if (WIFSIGNALED(status))
        return "the libraries that draw have crashed, as they do without memory";
    text[told > 0 ? told : 0] = '\0';
    return WEXITSTATUS(status) == 0 ? NULL : *text != '\0' ? text : "drawing has failed";
}

const char *picture_write(const picture_page *page, const output *to)
{
    format f = format_of(to->path);
    if (f == FORMAT_NONE)
        return "a picture's name ends in .svg, .png or .pdf";
    FILE *file = output_stream(to);
    if (file == NULL)
        return fail("cannot be written: %s", strerror(errno));
    const char *reason = draw_apart(page, f, file);
    if (fclose(file) != 0 && reason == NULL)
        reason = strerror(errno);
    return reason == NULL ? NULL : fail("cannot be written: %s", reason);
}
