// Pictures cuts a screenshot for a document: go -C .ci/tools run ./pictures IN OUT [HEIGHT]. It keeps HEIGHT rows, or leaves
// out the empty ones at the end, and writes few colours, so that the picture is small.
package main

import (
	"cmp"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"os"
	"slices"
	"strconv"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: pictures IN OUT [HEIGHT]")
	}
	in, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer in.Close()
	whole, err := png.Decode(in)
	if err != nil {
		return err
	}
	height := lastRow(whole) + 12
	if len(args) > 2 {
		height, err = strconv.Atoi(args[2])
		if err != nil {
			return err
		}
	}
	size := image.Rect(0, 0, whole.Bounds().Dx(), min(height, whole.Bounds().Dy()))
	cut := image.NewPaletted(size, colours(whole, size))
	draw.Draw(cut, size, whole, image.Point{}, draw.Src)
	out, err := os.Create(args[1])
	if err != nil {
		return err
	}
	defer out.Close()
	return (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(out, cut)
}

// lastRow returns the last row that isn't all of one colour.
func lastRow(img image.Image) int {
	b := img.Bounds()
	for y := b.Max.Y - 1; y > b.Min.Y; y-- {
		for x := b.Min.X + 1; x < b.Max.X; x++ {
			if img.At(x, y) != img.At(b.Min.X, y) {
				return y
			}
		}
	}
	return b.Max.Y
}

// colours returns the 256 colours that the part of the picture has most of.
func colours(img image.Image, part image.Rectangle) color.Palette {
	count := map[color.Color]int{}
	for y := part.Min.Y; y < part.Max.Y; y++ {
		for x := part.Min.X; x < part.Max.X; x++ {
			count[img.At(x, y)]++
		}
	}
	var all color.Palette
	for c := range count {
		all = append(all, c)
	}
	key := func(c color.Color) uint32 { r, g, b, _ := c.RGBA(); return r>>8<<16 | g>>8<<8 | b>>8 }
	slices.SortFunc(all, func(a, b color.Color) int {
		return cmp.Or(count[b]-count[a], cmp.Compare(key(a), key(b)))
	})
	return all[:min(len(all), 256)]
}
