import { use, init, registerTheme, graphic } from 'echarts/core';
import { BarChart, LineChart, TreemapChart, CustomChart, HeatmapChart } from 'echarts/charts';
import { GridComponent, TooltipComponent, AriaComponent, DataZoomComponent, VisualMapComponent, MarkLineComponent, LegendComponent } from 'echarts/components';
import { SVGRenderer } from 'echarts/renderers';
use([BarChart, LineChart, TreemapChart, CustomChart, HeatmapChart, GridComponent, TooltipComponent, AriaComponent, DataZoomComponent, VisualMapComponent, MarkLineComponent, LegendComponent, SVGRenderer]);
export { init, registerTheme, graphic };
