/* SPDX-License-Identifier: Apache-2.0 */
/* The page of all pictures: SVG, text that cannot overflow, shapes. */
#include "pictures/canvas.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"

/* ---- text -------------------------------------------------------------------------------------------------------- */

#define LONGEST_TEXT 512
static const char ellipsis[] = "\u2026";

const picture_style picture_heading = {17, true, PICTURE_BLACK}, picture_plain = {PICTURE_TEXT, false, PICTURE_BLACK},
                    picture_bold = {PICTURE_TEXT, true, PICTURE_BLACK},
                    picture_quiet = {PICTURE_TEXT, false, PICTURE_GREY},
                    picture_mark = {PICTURE_TEXT, true, PICTURE_MARK};

/* Advance widths of ASCII from the space on, in hundredths of the size: the wider of DejaVu Sans and Liberation Sans
 * (metrics of Arial and Helvetica), rounded up. */
static const uint8_t widths[2][95] = {
    {32, 41, 46, 84, 64, 96, 78, 28, 40,  40, 50, 84, 32, 37, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64,
     64, 64, 34, 34, 84, 84, 84, 56, 102, 69, 69, 73, 78, 67, 62, 78, 76, 30, 50, 67, 56, 87, 75, 79,
     67, 79, 73, 67, 62, 74, 69, 99, 69,  67, 69, 40, 34, 40, 84, 56, 50, 62, 64, 55, 64, 62, 36, 64,
     64, 28, 28, 58, 28, 98, 64, 62, 64,  64, 42, 53, 40, 64, 60, 82, 60, 60, 53, 64, 34, 64, 84},
    {35, 46, 53, 84, 70, 101, 88, 31,  46,  46, 53, 84, 38, 42, 38, 37, 70, 70, 70, 70, 70, 70,  70, 70,
     70, 70, 40, 40, 84, 84,  84, 62,  100, 78, 77, 74, 84, 69, 69, 83, 84, 38, 56, 78, 64, 100, 84, 86,
     74, 86, 78, 73, 69, 82,  78, 111, 78,  73, 73, 46, 37, 46, 84, 56, 50, 68, 72, 60, 72, 68,  44, 72,
     72, 35, 35, 67, 35, 105, 72, 69,  72,  72, 50, 60, 48, 72, 66, 93, 65, 66, 59, 72, 37, 72,  84}};

/* At least that of Latin, Greek, Cyrillic and East Asian characters. */
enum { FULL_WIDTH = 120 };

/* true at the first byte of other characters, such as ligatures of words and emoji: textLength gives them that width. */
static bool has_unknown_width(const unsigned char *at)
{
    if (*at < 0xD5 || (*at >= 0xE3 && *at <= 0xE9) || (*at >= 0xEB && *at <= 0xED))
        return false;
    return strncmp((const char *)at, ellipsis, 3) != 0;
}

/* Replaces bytes that are not printable UTF-8, and the two code points that XML forbids beyond them. */
static void clean(const char *text, char cleaned[LONGEST_TEXT])
{
    size_t at = 0;
    while (*text != '\0' && at + 5 < LONGEST_TEXT) {
        size_t bytes = bp_printable_bytes((const unsigned char *)text);
        if (bytes == 3 && memcmp(text, "\xEF\xBF", 2) == 0 && (unsigned char)text[2] >= 0xBE)
            bytes = 0;
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

static double width_of(const picture_style *style, const char *cleaned)
{
    double width = 0;
    for (; *cleaned != '\0'; cleaned++) {
        unsigned char c = (unsigned char)*cleaned;
        if ((c & 0xc0) != 0x80) /* not within a character */
            width += c >= ' ' && c < 0x7f ? widths[style->bold][c - ' '] : FULL_WIDTH;
    }
    return width * style->size / 100;
}

void picture_print(picture *p, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int bytes = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (bytes >= 0 && p->length + (size_t)bytes >= p->capacity) {
        const size_t capacity = 2 * p->capacity + (size_t)bytes + 4096;
        char *text = realloc(p->text, capacity);
        p->failed = p->failed || text == NULL;
        p->text = text != NULL ? text : p->text;
        p->capacity = text != NULL ? capacity : p->capacity;
    }
    if (bytes >= 0 && p->length + (size_t)bytes < p->capacity)
        p->length += (size_t)vsnprintf(p->text + p->length, p->capacity - p->length, format, again);
    else
        p->failed = true;
    va_end(again);
}

double picture_text_width(const picture_style *style, const char *text)
{
    char cleaned[LONGEST_TEXT];
    clean(text, cleaned);
    return width_of(style, cleaned);
}

void picture_number(picture *p, double value)
{
    /* printf would take a locale's decimal point */
    long long hundredths = llround(fmin(fmax(value, -1e9), 1e9) * 100), part = llabs(hundredths) % 100;
    picture_print(p, "%s%lld", hundredths < 0 ? "-" : "", llabs(hundredths) / 100);
    if (part != 0)
        picture_print(p, part % 10 == 0 ? ".%lld" : ".%02lld", part % 10 == 0 ? part / 10 : part);
}

static void write_attribute(picture *p, const char *name, double value)
{
    picture_print(p, " %s=\"", name);
    picture_number(p, value);
    picture_print(p, "\"");
}

static void write_colour(picture *p, const char *name, uint32_t colour)
{
    picture_print(p, " %s=\"#%06x\"", name, (unsigned)colour);
}

static void write_text(picture *p, const picture_style *style, double x, double y, double anchor, const char *cleaned)
{
    bool is_guessed = false;
    for (const char *c = cleaned; *c != '\0'; c++)
        is_guessed = is_guessed || has_unknown_width((const unsigned char *)c);
    picture_print(p, "<text");
    write_attribute(p, "x", x);
    write_attribute(p, "y", y);
    if (style->size != PICTURE_TEXT)
        write_attribute(p, "font-size", style->size);
    if (style->bold)
        picture_print(p, " font-weight=\"bold\"");
    if (anchor > 0)
        picture_print(p, " text-anchor=\"%s\"", anchor < 1 ? "middle" : "end");
    if (is_guessed) {
        write_attribute(p, "textLength", width_of(style, cleaned));
        picture_print(p, " lengthAdjust=\"spacingAndGlyphs\"");
    }
    write_colour(p, "fill", style->colour);
    picture_print(p, ">");
    for (; *cleaned != '\0'; cleaned++) {
        const char *escaped = *cleaned == '&' ? "&amp;" : *cleaned == '<' ? "&lt;" : *cleaned == '>' ? "&gt;" : NULL;
        if (escaped != NULL)
            picture_print(p, "%s", escaped);
        else
            picture_print(p, "%c", *cleaned);
    }
    picture_print(p, "</text>\n");
}

void picture_text(picture *p, const picture_style *style, double x, double y, double anchor, double room,
                  const char *text)
{
    char cleaned[LONGEST_TEXT + 4];
    clean(text, cleaned);
    size_t length = strlen(cleaned);
    while (width_of(style, cleaned) > room && length > 0) {
        do
            length--;
        while (length > 0 && ((unsigned char)cleaned[length] & 0xc0) == 0x80);
        memcpy(cleaned + length, ellipsis, sizeof ellipsis);
    }
    if (*cleaned != '\0' && width_of(style, cleaned) <= room)
        write_text(p, style, x, y, anchor, cleaned);
}

void picture_text_tail(picture *p, const picture_style *style, double x, double y, double room, const char *text)
{
    char cleaned[LONGEST_TEXT], shown[LONGEST_TEXT + 4];
    size_t length = strlen(text);
    text += length >= LONGEST_TEXT - 5 ? length - (LONGEST_TEXT - 6) : 0;
    clean(text, cleaned);
    const char *from = cleaned;
    memcpy(shown, cleaned, strlen(cleaned) + 1);
    while (width_of(style, shown) > room && *from != '\0') {
        do
            from++;
        while (((unsigned char)*from & 0xc0) == 0x80);
        snprintf(shown, sizeof shown, "%s%s", ellipsis, from);
    }
    picture_text(p, style, x, y, 0, room, shown);
}

void picture_paragraph(picture *p, const picture_style *style, const char *text)
{
    char line[LONGEST_TEXT] = "";
    while (*text != '\0') {
        size_t word = strcspn(text, " "), length = strlen(line);
        char longer[LONGEST_TEXT];
        snprintf(longer, sizeof longer, "%s%s%.*s", line, length > 0 ? " " : "", (int)(word < 400 ? word : 400), text);
        if (length > 0 && picture_text_width(style, longer) > PICTURE_INNER) {
            picture_text(p, style, PICTURE_MARGIN, p->y + PICTURE_TEXT, 0, PICTURE_INNER, line);
            p->y += PICTURE_LINE;
            *line = '\0';
            continue;
        }
        memcpy(line, longer, sizeof line);
        text += word;
        text += strspn(text, " ");
    }
    picture_text(p, style, PICTURE_MARGIN, p->y + PICTURE_TEXT, 0, PICTURE_INNER, line);
    p->y += *line != '\0' ? PICTURE_LINE : 0;
}

void picture_title(picture *p, const char *title)
{
    char line[LONGEST_TEXT];
    size_t length = strcspn(title, "\n");
    snprintf(line, sizeof line, "%.*s", (int)(length < sizeof line ? length : sizeof line - 1), title);
    picture_text(p, &picture_heading, PICTURE_MARGIN, p->y + PICTURE_TEXT, 0, PICTURE_INNER, line);
    p->y += PICTURE_LINE + 2;
    if (title[length] == '\n')
        picture_paragraph(p, &picture_quiet, title + length + 1);
    p->y += 8;
}

static const char *byte_unit(double bytes, double *unit)
{
    static const char *const names[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t i = sizeof names / sizeof *names - 1;
    while (i > 0 && bytes < (double)(1ull << 10 * i))
        i--;
    *unit = (double)(1ull << 10 * i);
    return names[i];
}

const char *picture_format_bytes(uint64_t bytes, char text[PICTURE_BYTES_CHARS])
{
    double unit;
    const char *name = byte_unit((double)bytes, &unit);
    double value = (double)bytes / unit;
    int decimals = unit == 1 || bytes == 0 ? 0 : value < 10 ? 3 : value < 100 ? 2 : 1;
    snprintf(text, PICTURE_BYTES_CHARS, "%.*f %s", decimals, value, bytes == 1 ? "byte" : name);
    return text;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

/* From this number of boxes on, runs are smaller and look the same. */
enum { MAX_BOXES = 4000, RUNS_PER_POINT = 2 };
#define MIN_EDGED 2.5
#define MIN_EXTENT 0.5 /* so that slivers stay visible */

/* Okabe and Ito's palette for colour-blind readers, without its red, which is used for marks. */
const uint32_t picture_colours[PICTURE_COLOURS] = {0x0072B2, 0xE69F00, 0x009E73, 0xCC79A7, 0x56B4E9,
                                                   0xF0E442, 0x8A6D3B, 0x5A5A5A, 0xF9F9F9};

uint32_t picture_ink(uint32_t colour)
{
    double luma = 0.3 * (colour >> 16) + 0.59 * (colour >> 8 & 255) + 0.11 * (colour & 255);
    return luma < 128 ? 0xffffff : 0x000000;
}

void picture_fill(picture *p, uint32_t colour, double alpha, double x, double y, double width, double height)
{
    picture_print(p, "<rect");
    write_attribute(p, "x", x);
    write_attribute(p, "y", y);
    write_attribute(p, "width", width);
    write_attribute(p, "height", height);
    write_colour(p, "fill", colour);
    if (alpha < 1)
        write_attribute(p, "fill-opacity", alpha);
    picture_print(p, "/>\n");
}

void picture_line(picture *p, uint32_t colour, double x1, double y1, double x2, double y2, double width, bool dashed)
{
    picture_print(p, "<line");
    write_attribute(p, "x1", x1);
    write_attribute(p, "y1", y1);
    write_attribute(p, "x2", x2);
    write_attribute(p, "y2", y2);
    write_colour(p, "stroke", colour);
    write_attribute(p, "stroke-width", width);
    picture_print(p, "%s", dashed ? " stroke-dasharray=\"7 4\"/>\n" : "/>\n");
}

static void add_rectangle(picture *p, double x, double y, double width, double height)
{
    picture_print(p, "M");
    picture_number(p, x);
    picture_print(p, " ");
    picture_number(p, y);
    picture_print(p, "h");
    picture_number(p, width);
    picture_print(p, "v");
    picture_number(p, height);
    picture_print(p, "h");
    picture_number(p, -width);
    picture_print(p, "z");
}

bool picture_is_coarse(size_t count)
{
    return count > MAX_BOXES;
}

/* One path for the boxes of a colour that are large enough for an edge, and one for the others. */
static void draw_each(picture *p, const picture_box *boxes, size_t count)
{
    for (unsigned path = 0; path < 2 * PICTURE_COLOURS; path++) {
        bool edged = path % 2 == 0, begun = false;
        for (size_t i = 0; i < count; i++) {
            const picture_box *b = &boxes[i];
            if (b->colour != path / 2 || edged != (b->width >= MIN_EDGED && b->height >= MIN_EDGED))
                continue;
            if (!begun) {
                picture_print(p, "<path class=\"boxes\"");
                write_colour(p, "fill", picture_colours[b->colour]);
                picture_print(p, "%s", edged ? " stroke=\"#ffffff\" stroke-width=\"0.5\" d=\"" : " d=\"");
                begun = true;
            }
            add_rectangle(p, b->x, b->y, fmax(b->width, MIN_EXTENT), fmax(b->height, MIN_EXTENT));
        }
        picture_print(p, "%s", begun ? "\"/>\n" : "");
    }
}

/* ---- many boxes: a grid, and its runs ---- */

/* Each cell is painted once, by the first box that takes it: `next` leads over those of a row that have been, so that
 * the work is bounded by boxes times rows whatever they cover. */
typedef struct grid {
    int columns, rows;
    uint8_t *cells; /* colour + 1; 0: free, or drawn */
    uint16_t *next; /* columns + 1 of each row */
} grid;

static int cell_at(double place, int max)
{
    return place <= 0 ? 0 : place >= max ? max : (int)place;
}

/* The first cell from a column on that has not been painted; halves the path to it. */
static int skip_painted(uint16_t *next, int column)
{
    while (next[column] != column) {
        next[column] = next[next[column]];
        column = next[column];
    }
    return column;
}

/* A box takes at least a cell. */
static void paint(grid *g, const picture_box *plot, const picture_box *b)
{
    int x0 = cell_at((b->x - plot->x) * RUNS_PER_POINT, g->columns - 1),
        y0 = cell_at((b->y - plot->y) * RUNS_PER_POINT, g->rows - 1);
    int x1 = cell_at(ceil((b->x + b->width - plot->x) * RUNS_PER_POINT - 0.5), g->columns);
    int y1 = cell_at(ceil((b->y + b->height - plot->y) * RUNS_PER_POINT - 0.5), g->rows);
    for (int y = y0; y < y1 || y == y0; y++) {
        uint16_t *next = g->next + (ptrdiff_t)y * (g->columns + 1);
        for (int x = skip_painted(next, x0); x < x1 || x == x0; x = skip_painted(next, x)) {
            g->cells[(ptrdiff_t)y * g->columns + x] = (uint8_t)(b->colour + 1);
            next[x] = (uint16_t)(x + 1);
        }
    }
}

/* The number of cells of a colour from this one on, to the right. */
static int run_length(const grid *g, int x, int y, uint8_t colour, int max)
{
    const uint8_t *row = g->cells + (ptrdiff_t)y * g->columns;
    int length = 0;
    while (length < max && row[x + length] == colour)
        length++;
    return length;
}

static void add_runs(picture *p, const picture_box *plot, grid *g, uint8_t colour)
{
    for (int y = 0; y < g->rows; y++) {
        for (int x = 0; x < g->columns; x++) {
            int width = run_length(g, x, y, colour, g->columns - x), below = y;
            for (; width > 0 && below < g->rows && run_length(g, x, below, colour, width) == width; below++)
                memset(g->cells + (ptrdiff_t)below * g->columns + x, 0, (size_t)width);
            if (width > 0)
                add_rectangle(p, plot->x + x / (double)RUNS_PER_POINT, plot->y + y / (double)RUNS_PER_POINT,
                              width / (double)RUNS_PER_POINT, (below - y) / (double)RUNS_PER_POINT);
        }
    }
}

static void draw_runs(picture *p, const picture_box *plot, const picture_box *boxes, size_t count)
{
    grid g = {.columns = (int)(plot->width * RUNS_PER_POINT), .rows = (int)(plot->height * RUNS_PER_POINT)};
    g.cells = calloc((size_t)g.columns * (size_t)g.rows, 1);
    g.next = calloc((size_t)(g.columns + 1) * (size_t)g.rows, sizeof *g.next);
    if (g.cells != NULL && g.next != NULL) {
        for (int i = 0; i < (g.columns + 1) * g.rows; i++)
            g.next[i] = (uint16_t)(i % (g.columns + 1));
        for (int colour = PICTURE_COLOURS - 1; colour >= 0; colour--) {
            for (size_t i = 0; i < count; i++) {
                if (boxes[i].colour == colour && (colour != PICTURE_GONE || boxes[i].width * RUNS_PER_POINT >= 1))
                    paint(&g, plot, &boxes[i]);
            }
        }
        for (unsigned colour = 0; colour < PICTURE_COLOURS; colour++) {
            picture_print(p, "<path class=\"boxes\" shape-rendering=\"crispEdges\"");
            write_colour(p, "fill", picture_colours[colour]);
            picture_print(p, " d=\"");
            add_runs(p, plot, &g, colour + 1);
            picture_print(p, "\"/>\n");
        }
    } else {
        p->failed = true;
    }
    free(g.cells);
    free(g.next);
}

void picture_boxes(picture *p, const picture_box *plot, const picture_box *boxes, size_t count)
{
    if (picture_is_coarse(count))
        draw_runs(p, plot, boxes, count);
    else
        draw_each(p, boxes, count);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static _Thread_local char error_text[512];

/* Inverts lightness under prefers-color-scheme: dark. Viewers without style sheets show the page on white. */
static const char page_head[] =
    "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
    "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"%d\">\n"
    "<style>@media (prefers-color-scheme: dark) { :root { filter: invert(0.92) hue-rotate(180deg); } }</style>\n"
    "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n";

const char *picture_write(void (*draw)(picture *p, const void *user), const void *user, const output *to)
{
    picture p = {.y = PICTURE_MARGIN};
    draw(&p, user);
    const int height = (int)ceil(p.y) + PICTURE_MARGIN;
    FILE *file = p.failed ? NULL : output_stream(to);
    const char *reason = NULL;
    if (file == NULL) {
        reason = p.failed ? "out of memory while drawing" : strerror(errno);
    } else {
        fprintf(file, page_head, PICTURE_WIDTH, height, PICTURE_WIDTH, height, PICTURE_TEXT);
        fwrite(p.text, 1, p.length, file);
        fputs("</svg>\n", file);
        if (ferror(file))
            reason = strerror(errno);
        if (fclose(file) != 0 && reason == NULL)
            reason = strerror(errno);
    }
    free(p.text);
    if (reason == NULL)
        return NULL;
    snprintf(error_text, sizeof error_text, "cannot be written: %s", reason);
    return error_text;
}
